// EM routing: outputs are Gaussians with a variance for each number of a pose, fitted by E and M steps.
//
// Members of a group are treated together, one output after another: what an output needs (its mean, its variances and
// their gradients) then stays in the nearest cache while the votes for it are computed, used and forgotten.
#pragma once

template <class Real, int ROWS, int COLS>
class ExpectationMaximisation : public Block<Real, ROWS, COLS> {
    SHORTCAPS_FROM_BLOCK;

  public:
    ExpectationMaximisation(const RoutingProblem &p, Arena<Real> &arena, bool backward)
        : Base(p, arena, backward), floor(static_cast<Real>(p.floor)), sharpness(static_cast<Real>(p.sharpness)),
          temperature(static_cast<Real>(p.softness)), cost_scale(static_cast<Real>(double(p.outputs) / (double(all_inputs()) * size()))),
          keeps_shares(!backward && inputs * outputs <= shortcaps_vectors_at_once) {
        centres = arena.take((iterations + 1) * outputs * size());
        variances = arena.take((iterations + 1) * outputs * size());
        totals = arena.take((iterations + 1) * outputs);
        assigned = arena.take((iterations + 1) * outputs);
        scales = arena.take((iterations + 1) * outputs);
        state = of(centres, 1);
        state_vectors = (2 * iterations + 1) * outputs * size() + 3 * (iterations + 1) * outputs;
        logits = arena.take((iterations + 1) * outputs);
        precision = arena.take(outputs * size());
        constants = arena.take(outputs);
        largest = arena.take(outputs);
        pooled = arena.take(outputs * size());
        log_shares = arena.take(at_once * outputs);
        distances = arena.take(at_once);
        shares = arena.take((keeps_shares ? inputs : at_once) * outputs);
        if (!backward) return;
        centres_grad = arena.take((iterations + 1) * outputs * size());
        variance_grad = arena.take(outputs * size());
        step_sums = arena.take(outputs * size());
        square_sums = arena.take(outputs * size());
        logit_grad = arena.take(outputs);
        next_logit_grad = arena.take(outputs);
        assigned_grad = arena.take(outputs);
        offsets = arena.take(outputs);
        coefficients = arena.take(at_once * outputs);
        scores_grad = arena.take(at_once * outputs);
        by_coefficients = arena.take(at_once);
        vote_grad = arena.take(size());
    }

    void forward() {
        if (from_start()) {
            V existing{}, shared{};
            for (int64_t i = 0; i < inputs; ++i) {
                existing += weights[i];
                shared += share_weights[i];
            }
            gather(&existing, 1);
            gather(&shared, 1);
            for (int64_t m = 0; m < outputs; ++m) {
                totals[m] = shared;
                assigned[m] = existing / Real(outputs);
                scales[m] = V{};
            }
            measure_variance(0);
        } else {
            clear(variances, outputs * size());
            clear(totals, outputs);
            clear(assigned, outputs);
            clear(scales, outputs);
        }
        for (int64_t turn = 1; turn <= iterations; ++turn) {
            share_and_average(turn);
            if (turn < iterations || problem.activate)
                measure_variance(turn);
            else  // nobody asks
                std::fill_n(of(variances, turn), outputs * size(), splat<Real>(1));
        }
        resume();
    }

    void resume() {
        for (int64_t turn = from_start() ? 0 : 1; turn <= iterations; ++turn) activation_logits(turn);
        for (int64_t m = 0; m < outputs; ++m) activation[m] = sigmoid<Real>(logits[iterations * outputs + m]);
    }

    void backward() {
        clear(variance_grad, outputs * size());
        for (int64_t m = 0; m < outputs; ++m) logit_grad[m] = activation_grad[m] * activation[m] * (1 - activation[m]);
        for (int64_t turn = iterations; turn >= 1; --turn) {
            clear(assigned_grad, outputs);
            if (turn < iterations || problem.activate) backward_of_logits(turn);
            find_offsets(turn);
            const V *before = compared(turn - 1);
            if (before) find_constants(turn - 1);
            clear(step_sums, outputs * size());
            clear(square_sums, outputs * size());
            clear(next_logit_grad, outputs);
            for_each_piece([&](const Piece &piece) {
                expect<true>(piece, turn);
                for (int64_t s = 0; s < piece.count; ++s) gradients_of_scores(piece, turn, s);
                for (int64_t m = 0; m < outputs; ++m) gradients_of_votes(piece, turn, m);
                add_transform_gradients(piece.group);
            });
            if (!before) return;
            V *by_before = of(centres_grad, turn - 1);
            for (int64_t m = 0; m < outputs; ++m) {
                for (int64_t n = m * size(); n < (m + 1) * size(); ++n) {
                    by_before[n] += precision[n] * step_sums[n];
                    variance_grad[n] = (temperature * precision[n] * square_sums[n] - next_logit_grad[m]) * precision[n] / 2;
                }
                logit_grad[m] = next_logit_grad[m] * (1 - sigmoid<Real>(logits[(turn - 1) * outputs + m]));
            }
        }
        backward_of_start();
    }

  private:
    const Real floor, sharpness, temperature, cost_scale;
    const bool keeps_shares;  // from the mean of a turn to its variance, where they are not too many
    V *variances, *totals, *assigned, *scales, *logits, *precision, *constants, *largest, *pooled, *log_shares, *shares, *distances;
    V *variance_grad, *step_sums, *square_sums, *logit_grad, *next_logit_grad, *assigned_grad, *offsets;
    V *coefficients, *scores_grad, *by_coefficients, *vote_grad;

    // An output may be so far from every input that all its shares vanish in this precision, while they still have to sum
    // to 1 over the inputs. From this logarithm of its largest share on they are measured relative to it (`scales`).
    static constexpr Real FAR = -40;

    V *shares_of(const Piece &piece) const { return keeps_shares ? shares + piece.input * outputs : shares; }

    // E step for a piece: log_shares and shares, over the outputs. Turn 1 from scratch shares equally.
    // Going back, the votes serve for the gradients of the coefficients as well.
    template <bool BACKWARD>
    void expect(const Piece &piece, int64_t turn) {
        const V *before = compared(turn - 1);
        const int64_t count = piece.count;
        for (int64_t m = 0; m < outputs && (before || BACKWARD); ++m) {
            const V *old = before ? before + m * size() : nullptr, *inverse = precision + m * size();
            const V *mean = of(centres, turn) + m * size(), *by_mean = of(centres_grad, turn) + m * size();
            const V *by_variance = variance_grad + m * size();
            std::fill_n(distances, count, V{});
            if (BACKWARD) std::fill_n(by_coefficients, count, -offsets[m]);
            for_each_row_of_votes(piece, m, [&](int64_t s, int first, const V *v) {
                V distance = distances[s], by_coefficient = BACKWARD ? by_coefficients[s] : V{};
                for (int c = 0; c < WIDTH; ++c) {
                    const int h = first + c;
                    if (before) distance += (v[c] - old[h]) * (v[c] - old[h]) * inverse[h];
                    if (BACKWARD) by_coefficient += (v[c] - mean[h]) * (by_mean[h] + by_variance[h] * (v[c] - mean[h]));
                }
                distances[s] = distance;
                if (BACKWARD) by_coefficients[s] = by_coefficient;
            });
            for (int64_t s = 0; s < count; ++s) {
                log_shares[s * outputs + m] = constants[m] - distances[s] / 2;
                if (BACKWARD) scores_grad[s * outputs + m] = by_coefficients[s];
            }
        }
        V *share = shares_of(piece);
        if (!before) {
            std::fill_n(log_shares, count * outputs, splat<Real>(std::log(Real(1) / outputs)));
            std::fill_n(share, count * outputs, splat<Real>(Real(1) / outputs));
            return;
        }
        for (int64_t s = 0; s < count; ++s) {
            V *x = log_shares + s * outputs, *result = share + s * outputs, top = x[0], total{};
            for (int64_t m = 1; m < outputs; ++m) top = larger(top, x[m]);
            for (int64_t m = 0; m < outputs; ++m) total += result[m] = exponential(x[m] - top);
            top += logarithm(total);
            total = 1 / total;
            for (int64_t m = 0; m < outputs; ++m) {
                x[m] -= top;
                result[m] *= total;
            }
        }
    }

    // The share of an input, relative to exp(scales).
    V scaled_share(int64_t turn, V share, V log_share, int64_t m) const {
        const V scale = scales[turn * outputs + m];
        // An input that does not exist may lie above the largest of those that do: no weight times infinity is not a number.
        return scale < 0 ? exponential(smaller(log_share - scale, V{})) : share;
    }

    // Votes for one output, a row of them (or, where its width is not known when compiling, a number) at a time for all
    // members of a piece: what belongs to the row stays in registers. Calls body(member, first number, votes).
    static constexpr int WIDTH = COLS ? COLS : 1;
    template <class Body>
    void for_each_row_of_votes(const Piece &piece, int64_t m, Body body) const {
        const Real *T = transform(piece.group, m);
        const V *pose = poses_of(piece);
        for (int r = 0; r < rows(); ++r)
            for (int c = 0; c < cols(); c += WIDTH)
                for (int64_t s = 0; s < piece.count; ++s) {
                    V v[WIDTH];
                    for (int j = 0; j < WIDTH; ++j) v[j] = vote_number(T, pose + s * size(), r, c + j);
                    body(s, r * cols() + c, v);
                }
    }

    V vote_number(const Real *T, const V *pose, int r, int c) const {
        V sum = pose[c] * T[r * rows()];
        for (int k = 1; k < rows(); ++k) sum += pose[k * cols() + c] * T[r * rows() + k];
        return sum;
    }

    // E step and the mean of the M step. Shares that are kept are left relative to `scales`, for the variance.
    void share_and_average(int64_t turn) {
        V *next = of(centres, turn), *total = totals + turn * outputs, *given = assigned + turn * outputs;
        V *scale = scales + turn * outputs;
        const V lowest = splat<Real>(-std::numeric_limits<Real>::max());
        if (compared(turn - 1)) {
            activation_logits(turn - 1);
            find_constants(turn - 1);
        }
        clear(scale, outputs);
        clear(given, outputs);
        std::fill_n(largest, outputs, lowest);
        average(turn, [&](int64_t i, const V *log_share, const V *share) {
            for (int64_t m = 0; m < outputs; ++m) {
                given[m] += share[m] * weights[i];
                largest[m] = larger(largest[m], share_weights[i] > 0 ? log_share[m] : lowest);
            }
        });
        gather(given, outputs);
        gather_largest(largest, outputs);
        bool far = false;
        for (int64_t m = 0; m < outputs; ++m) {
            scale[m] = largest[m] < FAR ? largest[m] : V{};
            for (int lane = 0; lane < Base::LANES; ++lane) far |= scale[m][lane] < 0;
        }
        if (far) average(turn, [](int64_t, const V *, const V *) {});
        gather(next, outputs * size());
        gather(total, outputs);
        scale_by_totals(next, total);
    }

    template <class Body>
    void average(int64_t turn, Body look_at) {
        V *next = of(centres, turn), *total = totals + turn * outputs;
        clear(next, outputs * size());
        clear(total, outputs);
        for_each_piece([&](const Piece &piece) {
            expect<false>(piece, turn);
            for (int64_t s = 0; s < piece.count; ++s) {
                const int64_t i = piece.input + s;
                V *share = shares_of(piece) + s * outputs, *weighted = log_shares + s * outputs;
                look_at(i, weighted, share);
                for (int64_t m = 0; m < outputs; ++m) {
                    share[m] = scaled_share(turn, share[m], weighted[m], m);
                    total[m] += weighted[m] = share[m] * share_weights[i];
                }
            }
            contract<false>(
                pooled, size(), 1, log_shares, 1, outputs, poses_of(piece), 1, size(), outputs, size(), piece.count);
            for (int64_t m = 0; m < outputs; ++m) add_product(transform(piece.group, m), pooled + m * size(), next + m * size());
        });
    }

    // The shares of a piece in a turn, relative to `scales`. All are equal about given capsules, in turn 0.
    void find_shares(const Piece &piece, int64_t turn) {
        V *share = shares_of(piece);
        if (!turn) std::fill_n(share, piece.count * outputs, splat<Real>(1));
        if (!turn || keeps_shares) return;
        expect<false>(piece, turn);
        for (int64_t n = 0; n < piece.count * outputs; ++n) share[n] = scaled_share(turn, share[n], log_shares[n], n % outputs);
    }

    void measure_variance(int64_t turn) {
        V *variance = of(variances, turn);
        clear(variance, outputs * size());
        for_each_piece([&](const Piece &piece) {
            find_shares(piece, turn);
            for (int64_t m = 0; m < outputs; ++m) {
                const V *mean = of(centres, turn) + m * size(), factor = 1 / totals[turn * outputs + m];
                for (int64_t s = 0; s < piece.count; ++s)
                    distances[s] = shares_of(piece)[s * outputs + m] * share_weights[piece.input + s] * factor;
                V *__restrict sum = variance + m * size();
                for_each_row_of_votes(piece, m, [&](int64_t s, int first, const V *v) {
                    for (int c = 0; c < WIDTH; ++c) {
                        const V away = v[c] - mean[first + c];
                        sum[first + c] += distances[s] * away * away;
                    }
                });
            }
        });
        gather(variance, outputs * size());
        for (int64_t n = 0; n < outputs * size(); ++n) variance[n] += floor;
    }

    V cost(const V *variance, int64_t m) const {
        const Real *beta_use = static_cast<const Real *>(problem.beta_use);
        V sum = splat<Real>((beta_use ? beta_use[m] : Real(0)) * size());
        for (int h = 0; h < size(); ++h) sum += logarithm(variance[m * size() + h]) / 2;
        return sum;
    }

    void activation_logits(int64_t turn) {
        const Real *beta = static_cast<const Real *>(problem.beta);
        for (int64_t m = 0; m < outputs; ++m) {
            const V cost_of_use = cost(of(variances, turn), m) * assigned[turn * outputs + m] * cost_scale;
            logits[turn * outputs + m] = ((beta ? beta[m] : Real(0)) - cost_of_use) * sharpness;
        }
    }

    // Of the Gaussians of a turn: 1 / τσ², and ln a - Σ ln(2πσ²) / 2τ.
    void find_constants(int64_t turn) {
        const V *variance = of(variances, turn);
        for (int64_t m = 0; m < outputs; ++m) {
            V sum = splat<Real>(static_cast<Real>(size() * std::log(2 * 3.14159265358979323846)));
            for (int64_t n = m * size(); n < (m + 1) * size(); ++n) {
                sum += logarithm(variance[n]);
                precision[n] = 1 / (temperature * variance[n]);
            }
            constants[m] = log_sigmoid<Real>(logits[turn * outputs + m]) - sum / (2 * temperature);
        }
    }

    // From the gradient of the logits of a turn to those of β, of the variances and of what was assigned.
    void backward_of_logits(int64_t turn) {
        const V *variance = of(variances, turn);
        for (int64_t m = 0; m < outputs; ++m) {
            const V by_logit = logit_grad[m] * sharpness;
            const V by_cost = -by_logit * assigned[turn * outputs + m] * cost_scale;
            assigned_grad[m] = -by_logit * cost(variance, m) * cost_scale;
            if (shared_beta_grad) shared_beta_grad[m] += sum_of_lanes<Real>(by_logit);
            if (shared_beta_use_grad) shared_beta_use_grad[m] += sum_of_lanes<Real>(by_cost) * size();
            for (int64_t n = m * size(); n < (m + 1) * size(); ++n) variance_grad[n] += by_cost / 2 / variance[n];
        }
    }

    // The mean under r of ∂L/∂r = <v - mean, ∂L/∂mean> + <∂L/∂variance, (v - mean)²>.
    void find_offsets(int64_t turn) {
        const V *variance = of(variances, turn);
        for (int64_t m = 0; m < outputs; ++m) {
            offsets[m] = V{};
            for (int64_t n = m * size(); n < (m + 1) * size(); ++n) offsets[m] += variance_grad[n] * (variance[n] - floor);
        }
    }

    // For one member, from the gradients of the coefficients to those of the scores, i.e. of ln (a N(v)).
    void gradients_of_scores(const Piece &piece, int64_t turn, int64_t s) {
        const int64_t i = piece.input + s;
        const V *share = shares_of(piece) + s * outputs, *log_share = log_shares + s * outputs;
        V *gradient = scores_grad + s * outputs, total{};
        for (int64_t m = 0; m < outputs; ++m) {
            const V relative = scaled_share(turn, share[m], log_share[m], m) / totals[turn * outputs + m];
            const V by_share = relative * gradient[m], by_assigned = share[m] * assigned_grad[m];
            inputs_grad[i] += by_activation(by_share, i) + by_assigned;
            coefficients[s * outputs + m] = relative * share_weights[i];
            gradient[m] = by_share * share_weights[i] + by_assigned * weights[i];
            total += gradient[m];
        }
        for (int64_t m = 0; m < outputs; ++m) {
            gradient[m] -= share[m] * total;
            next_logit_grad[m] += gradient[m];
        }
    }

    void gradients_of_votes(const Piece &piece, int64_t turn, int64_t m) {
        const Real *T = transform(piece.group, m);
        const V *mean = of(centres, turn) + m * size(), *by_mean = of(centres_grad, turn) + m * size();
        const V *by_variance = variance_grad + m * size(), *inverse = precision + m * size();
        const V *before = compared(turn - 1) ? compared(turn - 1) + m * size() : nullptr;
        V *__restrict step_sum = step_sums + m * size(), *__restrict square_sum = square_sums + m * size();
        V *__restrict by_vote = vote_grad;
        V *by_transform = transform_grad + m * rows() * rows();
        clear(by_transform, rows() * rows());
        for (int64_t s = 0; s < piece.count; ++s) {
            const V *pose = poses_of(piece) + s * size();
            const V coefficient = coefficients[s * outputs + m], by_score = scores_grad[s * outputs + m];
            for (int r = 0; r < rows(); ++r)
                for (int c = 0; c < cols(); ++c) {
                    const int h = r * cols() + c;
                    const V v = vote_number(T, pose, r, c);
                    V gradient = coefficient * (by_mean[h] + (by_variance[h] + by_variance[h]) * (v - mean[h]));
                    if (before) {
                        const V away = v - before[h], step = by_score * away;
                        gradient -= step * inverse[h];
                        step_sum[h] += step;
                        square_sum[h] += step * away;
                    }
                    by_vote[h] = gradient;
                }
            Base::template transposed<true>(T, vote_grad, poses_grad + (piece.input + s) * size());
            add_outer(vote_grad, pose, by_transform);
        }
    }

    // The variance about the given capsules, under equal shares.
    void backward_of_start() {
        backward_of_logits(0);
        find_offsets(0);
        const V *mean = of(centres, 0);
        V *by_mean = of(centres_grad, 0);
        for (int64_t g = 0; g < problem.groups; ++g) {
            clear(transform_grad, outputs * rows() * rows());
            for (int64_t m = 0; m < outputs; ++m)
                for (int64_t s = 0; s < members; ++s) {
                    const int64_t i = g * members + s;
                    const V *pose = poses + i * size();
                    const V relative = 1 / totals[m], coefficient = relative * share_weights[i];
                    V by_coefficient = -offsets[m];
                    for (int r = 0; r < rows(); ++r)
                        for (int c = 0; c < cols(); ++c) {
                            const int h = r * cols() + c;
                            const int64_t n = m * size() + h;
                            const V away = vote_number(transform(g, m), pose, r, c) - mean[n], step = variance_grad[n] * away;
                            by_coefficient += step * away;
                            vote_grad[h] = 2 * coefficient * step;
                            by_mean[n] -= vote_grad[h];
                        }
                    inputs_grad[i] += by_activation(relative * by_coefficient, i) + assigned_grad[m] / Real(outputs);
                    Base::template transposed<true>(transform(g, m), vote_grad, poses_grad + i * size());
                    add_outer(vote_grad, pose, transform_grad + m * rows() * rows());
                }
            add_transform_gradients(g);
        }
    }
};
