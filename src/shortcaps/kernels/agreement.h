// Attention and dynamic routing: an input is shared out by how its vote agrees with the capsules, <v, g>.
//
// Dynamic's scores add up, and <v, g1> + <v, g2> = <v, g1 + g2>: it attends to the sum of the capsules so far where
// attention attends to the latest. And because a transformation is shared by the members of a group, no vote is needed:
// <T p, g> = <p, Tᵀ g> and Σ r T p = T Σ r p, with one product by T for each group instead of one for each input.
#pragma once

template <class Real, int ROWS, int COLS>
class Agreement : public Block<Real, ROWS, COLS> {
    SHORTCAPS_FROM_BLOCK;

  public:
    Agreement(const RoutingProblem &p, Arena<Real> &arena, bool backward) : Base(p, arena, backward) {
        centres = arena.take((iterations + 1) * outputs * size());
        state = sums = arena.take(state_vectors = iterations * outputs * size());
        total = arena.take(outputs * size());
        heard = arena.take(outputs * size());
        pooled = arena.take(outputs * size());
        coefficients = arena.take(at_once * outputs);
        if (!backward) return;
        centres_grad = arena.take((iterations + 1) * outputs * size());
        sum_grad = arena.take(outputs * size());
        attended_grad = arena.take(outputs * size());
        heard_grad = arena.take(outputs * size());
        pooled_scores = arena.take(outputs * size());
        scores_grad = arena.take(at_once * outputs);
        vote_grad = arena.take(size());
    }

    void forward() {
        for (int64_t turn = 0; turn < iterations; ++turn) {
            const V *centre = attended(turn);
            V *sum = of(sums, turn);
            clear(sum, outputs * size());
            for_each_piece([&](const Piece &piece) {
                share_out(piece, centre, true);
                if (members == 1) {
                    for (int64_t m = 0; m < outputs; ++m)
                        add_scaled(sum + m * size(), coefficients[m] * weights[piece.input], pooled + m * size());
                    return;
                }
                for (int64_t s = 0; s < piece.count; ++s)
                    for (int64_t m = 0; m < outputs; ++m) coefficients[s * outputs + m] *= weights[piece.input + s];
                contract<false>(
                    pooled, size(), 1, coefficients, 1, outputs, poses_of(piece), 1, size(), outputs, size(), piece.count);
                for (int64_t m = 0; m < outputs; ++m)  // Eq. (5)
                    add_product(transform(piece.group, m), pooled + m * size(), sum + m * size());
            });
            gather(sum, outputs * size());
            squash(turn);
        }
    }

    // The capsules after each turn, from their sums.
    void resume() {
        for (int64_t turn = 0; turn < iterations; ++turn) squash(turn);
    }

    void backward() {
        for (int64_t turn = iterations - 1; turn >= 0; --turn) {
            const V *centre = attended(turn);
            backward_of_squash(turn);
            clear(attended_grad, outputs * size());
            for_each_piece([&](const Piece &piece) {
                share_out(piece, centre, needs_scores(centre));
                if (members == 1)
                    backward_of_one(piece, centre);
                else
                    backward_of_several(piece, centre);
                add_transform_gradients(piece.group);
            });
            if (!centre) continue;
            const int64_t from = problem.kind == ATTENTION ? turn : (from_start() ? 0 : 1);
            for (int64_t before = from; before <= turn; ++before)
                for (int64_t n = 0; n < outputs * size(); ++n) of(centres_grad, before)[n] += attended_grad[n];
        }
    }

  private:
    V *sums, *total, *heard, *pooled, *coefficients;
    V *sum_grad, *attended_grad, *heard_grad, *pooled_scores, *scores_grad, *vote_grad;

    const V *attended(int64_t turn) {
        const int64_t from = from_start() ? 0 : 1;
        if (problem.kind == ATTENTION || turn <= from) return compared(turn);
        std::copy_n(of(centres, turn), outputs * size(), total);
        for (int64_t before = from; before < turn; ++before)
            for (int64_t n = 0; n < outputs * size(); ++n) total[n] += of(centres, before)[n];
        return total;
    }

    // Going back through equal shares, scores matter only to the activations of the inputs.
    bool needs_scores(const V *centre) const { return centre || problem.activations_grad; }

    // Eq. (6), (7): the coefficients of a piece. The only member of a group has its votes left in `pooled`.
    void share_out(const Piece &piece, const V *centre, bool with_votes) {
        const V *pose = poses_of(piece);
        const int64_t g = piece.group;
        if (members == 1 && with_votes)
            for (int64_t m = 0; m < outputs; ++m) vote(transform(g, m), pose, pooled + m * size());
        if (!centre) {
            std::fill_n(coefficients, piece.count * outputs, splat<Real>(Real(1) / outputs));
            return;
        }
        if (members == 1) {
            for (int64_t m = 0; m < outputs; ++m) coefficients[m] = dot(pooled + m * size(), centre + m * size());
        } else {
            for (int64_t m = 0; m < outputs; ++m)
                Base::template transposed<false>(transform(g, m), centre + m * size(), heard + m * size());
            contract<false>(coefficients, 1, outputs, heard, size(), 1, pose, size(), 1, outputs, piece.count, size());
        }
        for (int64_t s = 0; s < piece.count; ++s) softmax(coefficients + s * outputs);
    }

    void squash(int64_t turn) {
        for (int64_t m = 0; m < outputs; ++m) {
            const V *s = of(sums, turn) + m * size();
            V *next = of(centres, turn + 1) + m * size();
            const V squared = dot(s, s), length = square_root<Real>(squared), factor = length / (1 + squared);
            for (int h = 0; h < size(); ++h) next[h] = s[h] * factor;
            activation[m] = length * factor;  // Eq. (11)
        }
    }

    // g = s n / (1 + n²) with n = |s|; the activation is |g| = n² / (1 + n²).
    void backward_of_squash(int64_t turn) {
        const V tiny = splat<Real>(std::numeric_limits<Real>::min());
        for (int64_t m = 0; m < outputs; ++m) {
            const V *s = of(sums, turn) + m * size(), *by_next = of(centres_grad, turn + 1) + m * size();
            const V squared = dot(s, s), length = square_root<Real>(squared), below = 1 / (1 + squared);
            const V inverse = squared > tiny ? 1 / larger(length, tiny) : V{};
            V along = dot(s, by_next) * (1 - squared) * below * below * inverse;
            if (turn == iterations - 1) along += activation_grad[m] * 2 * below * below;
            for (int h = 0; h < size(); ++h) sum_grad[m * size() + h] = by_next[h] * length * below + s[h] * along;
        }
    }

    void backward_of_several(const Piece &piece, const V *centre) {
        const V *pose = poses_of(piece);
        V *by_pose = poses_grad + piece.input * size();
        const int64_t g = piece.group, count = piece.count;
        for (int64_t m = 0; m < outputs; ++m)
            Base::template transposed<false>(transform(g, m), sum_grad + m * size(), heard_grad + m * size());
        contract<false>(scores_grad, 1, outputs, heard_grad, size(), 1, pose, size(), 1, outputs, count, size());
        for (int64_t s = 0; s < count; ++s)
            turn_into_score_gradients(piece.input + s, coefficients + s * outputs, scores_grad + s * outputs);
        contract<true>(by_pose, 1, size(), heard_grad, 1, size(), coefficients, outputs, 1, size(), count, outputs);
        contract<false>(pooled, size(), 1, coefficients, 1, outputs, pose, 1, size(), outputs, size(), count);
        if (centre) {
            contract<true>(by_pose, 1, size(), heard, 1, size(), scores_grad, outputs, 1, size(), count, outputs);
            contract<false>(pooled_scores, size(), 1, scores_grad, 1, outputs, pose, 1, size(), outputs, size(), count);
        }
        clear(transform_grad, outputs * rows() * rows());
        for (int64_t m = 0; m < outputs; ++m) {
            V *by_transform = transform_grad + m * rows() * rows();
            add_outer(sum_grad + m * size(), pooled + m * size(), by_transform);
            if (!centre) continue;
            add_outer(centre + m * size(), pooled_scores + m * size(), by_transform);
            add_product(transform(g, m), pooled_scores + m * size(), attended_grad + m * size());
        }
    }

    void backward_of_one(const Piece &piece, const V *centre) {
        const V *v = pooled, *pose = poses_of(piece);
        const int64_t g = piece.group;
        clear(transform_grad, outputs * rows() * rows());
        for (int64_t m = 0; m < outputs; ++m)
            scores_grad[m] = needs_scores(centre) ? dot(v + m * size(), sum_grad + m * size()) : V{};
        turn_into_score_gradients(g, coefficients, scores_grad);
        for (int64_t m = 0; m < outputs; ++m) {
            for (int h = 0; h < size(); ++h) vote_grad[h] = coefficients[m] * sum_grad[m * size() + h];
            if (centre) {
                add_scaled(vote_grad, scores_grad[m], centre + m * size());
                add_scaled(attended_grad + m * size(), scores_grad[m], v + m * size());
            }
            Base::template transposed<true>(transform(g, m), vote_grad, poses_grad + g * size());
            add_outer(vote_grad, pose, transform_grad + m * rows() * rows());
        }
    }

    // In: coefficients, and gradients of the weighted ones. Out: weighted coefficients, and gradients of the scores.
    void turn_into_score_gradients(int64_t i, V *coefficient, V *gradient) {
        V mean{};
        for (int64_t m = 0; m < outputs; ++m) mean += coefficient[m] * gradient[m];
        inputs_grad[i] += mean;
        for (int64_t m = 0; m < outputs; ++m) {
            coefficient[m] *= weights[i];
            gradient[m] = coefficient[m] * (gradient[m] - mean);
        }
    }
};
