// Fuzzy routing: an input belongs to an output by how near its vote lies, ‖v - g‖², compared with the other outputs.
//
// Distances may be tiny beside the votes, so differences are taken vote by vote, and everything else is expressed by them.
#pragma once

template <class Real, int ROWS, int COLS>
class FuzzyMeans : public Block<Real, ROWS, COLS> {
    SHORTCAPS_FROM_BLOCK;

  public:
    FuzzyMeans(const RoutingProblem &p, Arena<Real> &arena, bool backward)
        : Base(p, arena, backward), fuzziness(static_cast<Real>(p.softness)), floor(static_cast<Real>(p.floor)),
          exponent(static_cast<Real>(-1 / (p.softness - 1))), is_two(p.softness == 2) {
        centres = arena.take((iterations + 1) * outputs * size());
        totals = arena.take((iterations + 1) * outputs);
        largest = arena.take(iterations * outputs);
        state = of(centres, 1);
        state_vectors = iterations * outputs * size() + (2 * iterations + 1) * outputs;
        differences = arena.take(outputs * size());
        distances = arena.take(outputs);
        about_centre = arena.take(outputs);
        swept = arena.take(outputs);
        squared = arena.take(outputs);
        nearness = arena.take(outputs);
        memberships = arena.take(outputs);
        to_last = arena.take(outputs * size());
        pose_sum = arena.take(size());
        if (!backward) return;
        centres_grad = arena.take((iterations + 1) * outputs * size());
        spread_grad = arena.take(outputs);
        coefficients = arena.take(outputs);
        scores_grad = arena.take(outputs);
        offsets = arena.take(outputs);
        scales = arena.take(outputs);
        pulls = arena.take(outputs * size());
        vote_grad = arena.take(size());
    }

    void forward() {
        for (int64_t turn = 0; turn < iterations; ++turn) compared(turn) ? move_centres(turn) : place_centres();
        if (problem.activate)
            complete_spread();
        else
            clear(spread(), outputs);
        resume();
    }

    void resume() {  // Eq. (13)
        if (!problem.activate) return;
        const Real *beta = static_cast<const Real *>(problem.beta);
        for (int64_t m = 0; m < outputs; ++m) {
            const V logit = (beta ? beta[m] : Real(0)) - logarithm(spread()[m] + floor) / 2;
            activation[m] = sigmoid<Real>(logit * static_cast<Real>(problem.sharpness));
        }
    }

    void backward() {
        clear(spread_grad, outputs);
        if (problem.activate)
            for (int64_t m = 0; m < outputs; ++m) {
                const V slope = activation[m] * (1 - activation[m]) * static_cast<Real>(problem.sharpness);
                const V by_logit = activation_grad[m] * slope;
                if (shared_beta_grad) shared_beta_grad[m] += sum_of_lanes<Real>(by_logit);
                spread_grad[m] = by_logit * Real(-0.5) / (spread()[m] + floor);
            }
        for (int64_t turn = iterations - 1; turn >= 0; --turn) {
            const bool with_spread = problem.activate && turn == iterations - 1;
            if (!compared(turn) && !with_spread) {
                backward_of_placing();
                continue;
            }
            const V *centre = compared(turn), *next = of(centres, turn + 1), *by_next = of(centres_grad, turn + 1);
            // What is compared with nothing is compared with the origin, where the vote is its own difference.
            for (int64_t n = 0; n < outputs * size(); ++n) to_last[n] = (centre ? centre[n] : V{}) - next[n];
            // ∂L/∂r = <v, ∂L/∂next> + spread_grad ‖v - next‖², less its mean under r, with v = difference + centre.
            for (int64_t m = 0; m < outputs; ++m) {
                offsets[m] = dot(to_last + m * size(), by_next + m * size());
                if (with_spread) offsets[m] -= spread_grad[m] * spread()[m];
                scales[m] = 1 / totals[turn * outputs + m];
                for (int64_t n = m * size(); n < (m + 1) * size(); ++n)
                    pulls[n] = with_spread ? by_next[n] + 2 * spread_grad[m] * to_last[n] : by_next[n];
            }
            for (int64_t g = 0, i = 0; g < problem.groups; ++g) {
                clear(transform_grad, outputs * rows() * rows());
                for (int64_t s = 0; s < members; ++s, ++i) backward_of_input(g, i, turn, with_spread);
                add_transform_gradients(g);
            }
        }
    }

  private:
    const Real fuzziness, floor, exponent;
    const bool is_two;
    V *totals, *largest, *differences, *distances, *about_centre, *swept, *squared, *nearness, *memberships, *to_last, *pose_sum;
    V *spread_grad, *coefficients, *scores_grad, *offsets, *scales, *pulls, *vote_grad;

    // With m_f = 2 a weight is f², and a constant factor keeps the square of a tiny membership in range.
    static constexpr Real SQUARE_SCALE = Real(1ll << 40);

    V *spread() const { return totals + iterations * outputs; }

    // Memberships of one input, Eq. (8), (9), as logarithms unless m_f is 2.
    void compare(int64_t g, const V *pose, const V *centre) {
        for (int64_t m = 0; m < outputs; ++m) {
            if (centre) {
                distances[m] = difference(transform(g, m), pose, centre + m * size(), differences + m * size());
                squared[m] = distances[m] + floor;
            } else
                vote(transform(g, m), pose, differences + m * size());
        }
        if (!centre) return;
        if (is_two) {
            V total{};
            for (int64_t m = 0; m < outputs; ++m) total += nearness[m] = 1 / squared[m];
            total = 1 / total;
            for (int64_t m = 0; m < outputs; ++m) memberships[m] = nearness[m] * total;
            return;
        }
        for (int64_t m = 0; m < outputs; ++m) memberships[m] = logarithm(squared[m]) * exponent;
        log_softmax(memberships);
    }

    // What an input weighs before the weights are scaled to sum to 1, relative to exp(largest).
    V weight(int64_t m, int64_t turn, const V *centre) const {
        if (!centre) return splat<Real>(1);
        if (is_two) return memberships[m] * SQUARE_SCALE * (memberships[m] * SQUARE_SCALE);
        // An input that does not exist may lie above the largest of those that do: no weight times infinity is not a number.
        return exponential(smaller(memberships[m] * fuzziness - largest[turn * outputs + m], V{}));
    }

    // From scratch there is nothing to compare with: inputs weigh alike, and since T is shared by a group, the sum of its votes is
    // the vote of its sum. Votes of single inputs are not needed.
    void place_centres() {
        V *next = of(centres, 1);
        V total{};
        clear(next, outputs * size());
        clear(largest, outputs);
        for (int64_t g = 0, i = 0; g < problem.groups; ++g) {
            clear(pose_sum, size());
            for (int64_t s = 0; s < members; ++s, ++i) {
                total += share_weights[i];
                add_scaled(pose_sum, share_weights[i], poses + i * size());
            }
            for (int64_t m = 0; m < outputs; ++m) add_product(transform(g, m), pose_sum, next + m * size());
        }
        gather(next, outputs * size());
        gather(&total, 1);
        std::fill_n(totals, outputs, total);
        scale_by_totals(next, totals);
        // No vote was seen, so the spread is not known: 0 of 1 has no digits, and `complete_spread` goes through the votes.
        clear(spread(), outputs);
        std::fill_n(about_centre, outputs, splat<Real>(1));
    }

    void backward_of_placing() {
        const V *next = of(centres, 1), *by_next = of(centres_grad, 1);
        const V share = 1 / totals[0];
        V by_mean{};  // Σ_m <next, ∂L/∂next>: ∂L/∂r less its mean under r, as below
        for (int64_t m = 0; m < outputs; ++m) by_mean += dot(next + m * size(), by_next + m * size());
        for (int64_t g = 0, i = 0; g < problem.groups; ++g) {
            V *heard = vote_grad;  // Σ_m Tᵀ ∂L/∂next, the same for all inputs of the group
            clear(heard, size());
            for (int64_t m = 0; m < outputs; ++m)
                Base::template transposed<true>(transform(g, m), by_next + m * size(), heard);
            clear(pose_sum, size());
            for (int64_t s = 0; s < members; ++s, ++i) {
                const V *pose = poses + i * size();
                inputs_grad[i] += by_activation(share * (dot(pose, heard) - by_mean), i);
                add_scaled(poses_grad + i * size(), share * share_weights[i], heard);
                add_scaled(pose_sum, share * share_weights[i], pose);
            }
            clear(transform_grad, outputs * rows() * rows());
            for (int64_t m = 0; m < outputs; ++m)
                add_outer(by_next + m * size(), pose_sum, transform_grad + m * rows() * rows());
            add_transform_gradients(g);
        }
    }

    void move_centres(int64_t turn) {
        const V *centre = compared(turn);
        V *next = of(centres, turn + 1), *total = totals + turn * outputs;
        clear(next, outputs * size());
        clear(total, outputs);
        clear(spread(), outputs);
        clear(largest + turn * outputs, outputs);
        if (!is_two) find_largest(turn, centre);
        for (int64_t g = 0, i = 0; g < problem.groups; ++g)
            for (int64_t s = 0; s < members; ++s, ++i) {
                compare(g, poses + i * size(), centre);
                for (int64_t m = 0; m < outputs; ++m) {
                    const V share = weight(m, turn, centre) * share_weights[i];
                    total[m] += share;
                    spread()[m] += share * distances[m];
                    add_scaled(next + m * size(), share, differences + m * size());
                }
            }
        gather(next, outputs * size());
        gather(total, outputs);
        gather(spread(), outputs);
        scale_by_totals(next, total);  // Eq. (10), (5)
        for (int64_t m = 0; m < outputs; ++m) {
            about_centre[m] = spread()[m] / total[m];
            spread()[m] = about_centre[m] - dot(next + m * size(), next + m * size());
        }
        for (int64_t n = 0; n < outputs * size(); ++n) next[n] += centre[n];
    }

    // A sweep of its own where weights are powers: an exponential of its own scale for each output. An input that does not
    // exist must not set the scale that the others are measured by.
    void find_largest(int64_t turn, const V *centre) {
        V *top = largest + turn * outputs;
        const V lowest = splat<Real>(-std::numeric_limits<Real>::max());
        std::fill_n(top, outputs, lowest);
        for (int64_t g = 0, i = 0; g < problem.groups; ++g)
            for (int64_t s = 0; s < members; ++s, ++i) {
                compare(g, poses + i * size(), centre);
                for (int64_t m = 0; m < outputs; ++m)
                    top[m] = larger(top[m], share_weights[i] > 0 ? memberships[m] * fuzziness : lowest);
            }
        gather_largest(top, outputs);
    }

    // Eq. (12). About their mean, votes spread as about the centre they were compared with, less the square of the step between the two: that
    // needs no sweep of its own. Where nearly all of it was the step, too few digits are left, and votes are gone through once more. Each lane
    // by itself, so that no sample's result depends on those beside it.
    void complete_spread() {
        Real lanes_left = 0;
        for (int64_t m = 0; m < outputs; ++m)
            lanes_left += sum_of_lanes<Real>(has_digits(m) ? V{} : splat<Real>(1));
        if (lanes_left == 0) return;
        const int64_t turn = iterations - 1;
        const V *centre = compared(turn), *last = of(centres, iterations);
        clear(swept, outputs);
        for (int64_t n = 0; n < outputs * size(); ++n) to_last[n] = (centre ? centre[n] : V{}) - last[n];
        for (int64_t g = 0, i = 0; g < problem.groups; ++g)
            for (int64_t s = 0; s < members; ++s, ++i) {
                compare(g, poses + i * size(), centre);
                for (int64_t m = 0; m < outputs; ++m) {
                    const V share = weight(m, turn, centre) * share_weights[i] / totals[turn * outputs + m];
                    swept[m] += share * distance_to_last(m);
                }
            }
        gather(swept, outputs);
        for (int64_t m = 0; m < outputs; ++m) spread()[m] = has_digits(m) ? spread()[m] : swept[m];
    }

    // Whether a spread that was found as a difference lost at most four bits by that, and did not overflow.
    auto has_digits(int64_t m) const {
        return (spread()[m] * 16 >= about_centre[m]) & (about_centre[m] <= std::numeric_limits<Real>::max());
    }

    V distance_to_last(int64_t m) const {
        V sum{};
        for (int h = 0; h < size(); ++h) {
            const V step = differences[m * size() + h] + to_last[m * size() + h];
            sum += step * step;
        }
        return sum;
    }

    void backward_of_input(int64_t g, int64_t i, int64_t turn, bool with_spread) {
        const V *pose = poses + i * size(), *centre = compared(turn), *by_next = of(centres_grad, turn + 1);
        compare(g, pose, centre);
        V total{};
        for (int64_t m = 0; m < outputs; ++m) {
            V by_coefficient = dot(differences + m * size(), by_next + m * size()) + offsets[m];
            if (with_spread) by_coefficient += spread_grad[m] * distance_to_last(m);
            const V share = weight(m, turn, centre) * scales[m];
            const V relative = share * by_coefficient;
            inputs_grad[i] += by_activation(relative, i);
            coefficients[m] = share * share_weights[i];
            scores_grad[m] = relative * share_weights[i] * fuzziness;  // by ln f
            total += scores_grad[m];
        }
        for (int64_t m = 0; m < outputs; ++m) {
            const V *away = differences + m * size();
            // ∂L/∂v: r (∂L/∂next + 2 spread_grad (v - next)), whose constant part is the pull, and what the distance to the centre says.
            V by_away = with_spread ? 2 * coefficients[m] * spread_grad[m] : V{};
            if (centre) {
                const V f = is_two ? memberships[m] : exponential(memberships[m]);
                const V inverse = is_two ? nearness[m] : 1 / squared[m];
                const V by_distance = (scores_grad[m] - f * total) * (2 * exponent) * inverse;
                by_away += by_distance;
                V *__restrict by_centre = of(centres_grad, turn) + m * size();
                for (int h = 0; h < size(); ++h) by_centre[h] -= by_distance * away[h];
            }
            for (int h = 0; h < size(); ++h)
                vote_grad[h] = coefficients[m] * pulls[m * size() + h] + by_away * away[h];
            Base::template transposed<true>(transform(g, m), vote_grad, poses_grad + i * size());
            add_outer(vote_grad, pose, transform_grad + m * rows() * rows());
        }
    }
};
