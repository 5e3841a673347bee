// The four routings, fused: for a block of samples (one per vector lane) all iterations run with the votes in registers and
// L1, an input at a time, and are computed anew whenever they are needed. The backward pass repeats the forward pass and
// then goes back through it. Nothing of the size of the votes exists anywhere.
//
// This file is compiled once for each instruction set; `VARIANT` names the namespace.

#include "routing.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace VARIANT {

#include "lanes.h"

// Gradients of shared parameters are summed in this many parts, whatever the number of threads, so that it does not
// change the result.
constexpr int64_t PARTS = 16;

template <class Real>
class Arena {
  public:
    explicit Arena(size_t vectors) {
        data_ = static_cast<Vector<Real> *>(std::aligned_alloc(64, round_up(vectors * sizeof(Vector<Real>))));
        if (!data_) throw std::bad_alloc();
        end_ = data_ + vectors;
        next_ = data_;
    }
    ~Arena() { std::free(data_); }
    Arena(const Arena &) = delete;
    Arena &operator=(const Arena &) = delete;
    Vector<Real> *take(size_t vectors) {
        Vector<Real> *result = next_;
        next_ += vectors;
        if (next_ > end_) std::abort();
        return result;
    }
    void reset() { next_ = data_; }

  private:
    static size_t round_up(size_t bytes) { return (bytes + 63) / 64 * 64; }
    Vector<Real> *data_, *end_, *next_;
};

// One block of samples. ROWS and COLS are the pose size where it is known when compiling, else 0.
template <class Real, int ROWS, int COLS>
class Block {
    typedef Vector<Real> V;
    static constexpr int LANES = Lanes<Real>::count;

  public:
    const RoutingProblem &problem;
    const int64_t inputs, outputs, iterations;

    Block(const RoutingProblem &p, Arena<Real> &arena, bool backward)
        : problem(p), inputs(p.groups * p.members), outputs(p.outputs), iterations(p.iterations) {
        arena.reset();
        poses = arena.take(inputs * size());
        weights_of_inputs = arena.take(inputs);
        share_weights = arena.take(inputs);
        centres = arena.take((iterations + 1) * outputs * size());
        sums = arena.take((iterations + 1) * outputs * size());
        variances = arena.take((iterations + 1) * outputs * size());
        logits = arena.take((iterations + 1) * outputs);
        assigned = arena.take((iterations + 1) * outputs);
        totals = arena.take((iterations + 1) * outputs);
        largest = arena.take((iterations + 1) * outputs);
        log_shares = arena.take(p.kind == EM ? iterations * inputs * outputs : 0);
        votes = arena.take(outputs * size());
        differences = arena.take(outputs * size());
        scores = arena.take(outputs);
        memberships = arena.take(outputs);
        activation = arena.take(outputs);
        if (!backward) return;
        poses_grad = arena.take(inputs * size());
        inputs_grad = arena.take(inputs);
        centres_grad = arena.take((iterations + 1) * outputs * size());
        sum_grad = arena.take(outputs * size());
        variance_grad = arena.take(outputs * size());
        logit_grad = arena.take(outputs);
        next_logit_grad = arena.take(outputs);
        activation_grad = arena.take(outputs);
        vote_grad = arena.take(size());
        transform_grad = arena.take(outputs * problem.rows * problem.rows);
        scores_grad = arena.take(outputs);
        offsets = arena.take(outputs);
        extra = arena.take(outputs);
        square_sums = arena.take(outputs * size());
    }

    static size_t arena_size(const RoutingProblem &p, bool backward) {
        const size_t inputs = p.groups * p.members, size = p.rows * p.cols, m = p.outputs, n = p.iterations + 1;
        size_t vectors = inputs * (size + 2) + n * m * (3 * size + 4) + m * (2 * size + 3);
        if (p.kind == EM) vectors += p.iterations * inputs * m;
        if (backward) vectors += inputs * (size + 1) + m * (n * size + 3 * size + 6 + p.rows * p.rows) + size;
        return vectors;
    }

    void forward(int64_t first) {
        load(first);
        switch (problem.kind) {
            case ATTENTION:
            case DYNAMIC: forward_by_agreement(); break;
            case FUZZY: forward_fuzzy(); break;
            default: forward_em(); break;
        }
    }

    void store(int64_t first) const {
        Real *pose = static_cast<Real *>(problem.pose), *probability = static_cast<Real *>(problem.activation);
        const V *last = centres + iterations * outputs * size();
        for (int lane = 0; lane < lanes_used(first); ++lane) {
            for (int64_t n = 0; n < outputs * size(); ++n) pose[(first + lane) * outputs * size() + n] = last[n][lane];
            if (probability)
                for (int64_t m = 0; m < outputs; ++m) probability[(first + lane) * outputs + m] = activation[m][lane];
        }
    }

    // Adds to transforms_grad, beta_grad and beta_use_grad; sets the others.
    void backward(int64_t first, Real *transforms_grad, Real *beta_grad, Real *beta_use_grad) {
        load_gradients(first);
        shared_transforms_grad = transforms_grad;
        shared_beta_grad = beta_grad;
        shared_beta_use_grad = beta_use_grad;
        switch (problem.kind) {
            case ATTENTION:
            case DYNAMIC: backward_by_agreement(); break;
            case FUZZY: backward_fuzzy(); break;
            default: backward_em(); break;
        }
        store_gradients(first);
    }

  private:
    V *poses, *weights_of_inputs, *share_weights, *centres, *sums, *variances, *logits, *assigned, *totals, *largest, *log_shares;
    V *votes, *differences, *scores, *memberships, *activation;
    V *poses_grad, *inputs_grad, *centres_grad, *sum_grad, *variance_grad, *logit_grad;
    V *next_logit_grad, *activation_grad, *vote_grad, *transform_grad, *scores_grad, *offsets, *extra, *square_sums;
    Real *shared_transforms_grad, *shared_beta_grad, *shared_beta_use_grad;

    int rows() const { return ROWS ? ROWS : static_cast<int>(problem.rows); }
    int cols() const { return COLS ? COLS : static_cast<int>(problem.cols); }
    int size() const { return rows() * cols(); }
    V *of(V *array, int64_t turn) const { return array + turn * outputs * size(); }
    const Real *transform(int64_t group, int64_t m) const {
        return static_cast<const Real *>(problem.transforms) + (group * outputs + m) * rows() * rows();
    }
    bool from_start() const { return problem.start != nullptr; }
    int lanes_used(int64_t first) const { return static_cast<int>(std::min<int64_t>(LANES, problem.batch - first)); }

    // Lanes beyond the batch repeat its last sample: real numbers, whose results and gradients are not used.
    int64_t sample(int64_t first, int lane) const { return std::min(first + lane, problem.batch - 1); }

    void load(int64_t first) {
        const int64_t *stride = problem.pose_strides;
        const Real *source = static_cast<const Real *>(problem.poses);
        const bool side_by_side = stride[0] == 1 && lanes_used(first) == LANES;
        V *target = poses;
        for (int64_t g = 0; g < problem.groups; ++g)
            for (int64_t s = 0; s < problem.members; ++s)
                for (int r = 0; r < rows(); ++r)
                    for (int c = 0; c < cols(); ++c, ++target) {
                        const Real *place = source + g * stride[1] + s * stride[2] + r * stride[3] + c * stride[4];
                        if (side_by_side)
                            std::memcpy(target, place + first, sizeof(V));
                        else
                            for (int lane = 0; lane < LANES; ++lane) (*target)[lane] = place[sample(first, lane) * stride[0]];
                    }
        const Real *given = static_cast<const Real *>(problem.activations);
        for (int64_t i = 0; i < inputs; ++i)
            for (int lane = 0; lane < LANES; ++lane)
                weights_of_inputs[i][lane] = given ? given[sample(first, lane) * inputs + i] : Real(1);
        // As in shares_over_inputs (base.py): where no input exists, all count alike.
        V existing{};
        for (int64_t i = 0; i < inputs; ++i) existing += weights_of_inputs[i];
        for (int64_t i = 0; i < inputs; ++i) share_weights[i] = existing > 0 ? weights_of_inputs[i] : splat<Real>(1);
        if (from_start()) load_by_sample(static_cast<const Real *>(problem.start), outputs * size(), first, centres);
    }

    void load_by_sample(const Real *source, int64_t count, int64_t first, V *target) const {
        for (int64_t n = 0; n < count; ++n)
            for (int lane = 0; lane < LANES; ++lane) target[n][lane] = source[sample(first, lane) * count + n];
    }

    void load_gradients(int64_t first) {
        clear(poses_grad, inputs * size());
        clear(inputs_grad, inputs);
        clear(centres_grad, (iterations + 1) * outputs * size());
        clear(activation_grad, outputs);
        const Real *by_pose = static_cast<const Real *>(problem.pose_grad);
        const Real *by_activation = static_cast<const Real *>(problem.activation_grad);
        V *last = of(centres_grad, iterations);
        for (int lane = 0; lane < lanes_used(first); ++lane) {
            if (by_pose)
                for (int64_t n = 0; n < outputs * size(); ++n) last[n][lane] = by_pose[(first + lane) * outputs * size() + n];
            if (by_activation)
                for (int64_t m = 0; m < outputs; ++m) activation_grad[m][lane] = by_activation[(first + lane) * outputs + m];
        }
    }

    void store_gradients(int64_t first) const {
        const int64_t *stride = problem.pose_strides;
        Real *by_poses = static_cast<Real *>(problem.poses_grad);
        const bool side_by_side = stride[0] == 1 && lanes_used(first) == LANES;
        const V *source = poses_grad;
        for (int64_t g = 0; g < problem.groups; ++g)
            for (int64_t s = 0; s < problem.members; ++s)
                for (int r = 0; r < rows(); ++r)
                    for (int c = 0; c < cols(); ++c, ++source) {
                        Real *place = by_poses + g * stride[1] + s * stride[2] + r * stride[3] + c * stride[4];
                        if (side_by_side)
                            std::memcpy(place + first, source, sizeof(V));
                        else
                            for (int lane = 0; lane < lanes_used(first); ++lane)
                                place[(first + lane) * stride[0]] = (*source)[lane];
                    }
        for (int lane = 0; lane < lanes_used(first); ++lane) {
            if (Real *by_start = static_cast<Real *>(problem.start_grad))
                for (int64_t n = 0; n < outputs * size(); ++n)
                    by_start[(first + lane) * outputs * size() + n] = centres_grad[n][lane];
            if (Real *by_inputs = static_cast<Real *>(problem.activations_grad))
                for (int64_t i = 0; i < inputs; ++i) by_inputs[(first + lane) * inputs + i] = inputs_grad[i][lane];
        }
    }

    static void clear(V *array, int64_t count) { std::memset(static_cast<void *>(array), 0, count * sizeof(V)); }

    // v = T p, for one output.
    void vote(const Real *T, const V *pose, V *v) const {
        for (int r = 0; r < rows(); ++r)
            for (int c = 0; c < cols(); ++c) {
                V sum = pose[c] * T[r * rows()];
                for (int k = 1; k < rows(); ++k) sum += pose[k * cols() + c] * T[r * rows() + k];
                v[r * cols() + c] = sum;
            }
    }

    void vote_for_all(int64_t group, const V *pose) {
        for (int64_t m = 0; m < outputs; ++m) vote(transform(group, m), pose, votes + m * size());
    }

    // From the gradient of one vote to those of its pose and its transformation.
    void pull_back(const Real *T, const V *pose, const V *by_vote, V *by_pose, V *by_transform) const {
        for (int k = 0; k < rows(); ++k)
            for (int c = 0; c < cols(); ++c) {
                V sum = by_pose[k * cols() + c];
                for (int r = 0; r < rows(); ++r) sum += by_vote[r * cols() + c] * T[r * rows() + k];
                by_pose[k * cols() + c] = sum;
            }
        for (int r = 0; r < rows(); ++r)
            for (int k = 0; k < rows(); ++k) {
                V sum = by_transform[r * rows() + k];
                for (int c = 0; c < cols(); ++c) sum += by_vote[r * cols() + c] * pose[k * cols() + c];
                by_transform[r * rows() + k] = sum;
            }
    }

    void add_transform_gradients(int64_t group) {
        const int64_t count = outputs * rows() * rows();
        Real *target = shared_transforms_grad + group * count;
        for (int64_t n = 0; n < count; ++n) target[n] += sum_of_lanes<Real>(transform_grad[n]);
    }

    V dot(const V *a, const V *b) const {
        V sum = a[0] * b[0];
        for (int h = 1; h < size(); ++h) sum += a[h] * b[h];
        return sum;
    }

    void add_scaled(V *target, V factor, const V *source) const {
        for (int h = 0; h < size(); ++h) target[h] += factor * source[h];
    }

    void softmax(const V *x, V *result) const {
        V top = x[0], total{};
        for (int64_t m = 1; m < outputs; ++m) top = larger(top, x[m]);
        for (int64_t m = 0; m < outputs; ++m) total += result[m] = exponential(x[m] - top);
        total = Real(1) / total;
        for (int64_t m = 0; m < outputs; ++m) result[m] *= total;
    }

    // Runs body(i, group, pose) over all inputs, with before(group) and after(group) around each group.
    template <class Body>
    void for_each_input(Body body) {
        for (int64_t g = 0, i = 0; g < problem.groups; ++g)
            for (int64_t s = 0; s < problem.members; ++s, ++i) body(i, g, poses + i * size());
    }
    template <class Body>
    void for_each_input_backward(Body body) {
        for (int64_t g = 0, i = 0; g < problem.groups; ++g) {
            clear(transform_grad, outputs * rows() * rows());
            for (int64_t s = 0; s < problem.members; ++s, ++i) body(i, g, poses + i * size());
            add_transform_gradients(g);
        }
    }

    // ---- attention and dynamic. Dynamic's scores add up, and <v, g1> + <v, g2> = <v, g1 + g2>: it attends to the sum of
    // the capsules so far where attention attends to the latest.

    const V *attended(int64_t turn) {
        if (problem.kind == ATTENTION || turn == (from_start() ? 0 : 1)) return of(centres, turn);
        V *sum = differences;
        std::copy_n(of(centres, turn), outputs * size(), sum);
        for (int64_t before = from_start() ? 0 : 1; before < turn; ++before)
            for (int64_t n = 0; n < outputs * size(); ++n) sum[n] += of(centres, before)[n];
        return sum;
    }

    void coefficients_by_agreement(const V *centre) {
        if (!centre) {
            std::fill_n(memberships, outputs, splat<Real>(Real(1) / outputs));
            return;
        }
        for (int64_t m = 0; m < outputs; ++m) scores[m] = dot(votes + m * size(), centre + m * size());
        softmax(scores, memberships);  // Eq. (6), (7)
    }

    void forward_by_agreement() {
        for (int64_t turn = 0; turn < iterations; ++turn) {
            const V *centre = turn || from_start() ? attended(turn) : nullptr;
            V *sum = of(sums, turn), *next = of(centres, turn + 1);
            clear(sum, outputs * size());
            for_each_input([&](int64_t i, int64_t g, const V *pose) {
                vote_for_all(g, pose);
                coefficients_by_agreement(centre);
                for (int64_t m = 0; m < outputs; ++m)
                    add_scaled(sum + m * size(), memberships[m] * weights_of_inputs[i], votes + m * size());  // Eq. (5)
            });
            for (int64_t m = 0; m < outputs; ++m) {
                const V *s = sum + m * size();
                V squared = dot(s, s), length = square_root<Real>(squared), factor = length / (1 + squared);
                for (int h = 0; h < size(); ++h) next[m * size() + h] = s[h] * factor;
                activation[m] = length * factor;  // Eq. (11)
            }
        }
    }

    void backward_by_agreement() {
        const V tiny = splat<Real>(std::numeric_limits<Real>::min());
        for (int64_t turn = iterations - 1; turn >= 0; --turn) {
            const V *centre = turn || from_start() ? attended(turn) : nullptr;
            const V *by_next = of(centres_grad, turn + 1);
            for (int64_t m = 0; m < outputs; ++m) {
                // g = s n / (1 + n²) with n = |s|; the activation is |g| = n² / (1 + n²).
                const V *s = of(sums, turn) + m * size();
                V squared = dot(s, s), length = square_root<Real>(squared), below = 1 / (1 + squared);
                V inverse = squared > tiny ? 1 / larger(length, tiny) : V{};
                V along = dot(s, by_next + m * size()) * (1 - squared) * below * below * inverse;
                if (turn == iterations - 1) along += activation_grad[m] * 2 * below * below;
                for (int h = 0; h < size(); ++h)
                    sum_grad[m * size() + h] = by_next[m * size() + h] * length * below + s[h] * along;
            }
            clear(square_sums, outputs * size());  // here: the gradient of what was attended to
            for_each_input_backward([&](int64_t i, int64_t g, const V *pose) {
                vote_for_all(g, pose);
                coefficients_by_agreement(centre);
                const V weight = weights_of_inputs[i];
                V mean{};
                for (int64_t m = 0; m < outputs; ++m) {
                    scores_grad[m] = dot(votes + m * size(), sum_grad + m * size());
                    mean += memberships[m] * scores_grad[m];
                }
                inputs_grad[i] += mean;
                for (int64_t m = 0; m < outputs; ++m) {
                    const V share = memberships[m] * weight;
                    for (int h = 0; h < size(); ++h) vote_grad[h] = share * sum_grad[m * size() + h];
                    if (centre) {
                        const V by_score = share * (scores_grad[m] - mean);
                        add_scaled(vote_grad, by_score, centre + m * size());
                        add_scaled(square_sums + m * size(), by_score, votes + m * size());
                    }
                    pull_back(transform(g, m), pose, vote_grad, poses_grad + i * size(), transform_grad + m * rows() * rows());
                }
            });
            if (!centre) continue;
            const int64_t from = problem.kind == ATTENTION ? turn : (from_start() ? 0 : 1);
            for (int64_t before = from; before <= turn; ++before)
                for (int64_t n = 0; n < outputs * size(); ++n) of(centres_grad, before)[n] += square_sums[n];
        }
    }

    // ---- fuzzy

    bool plain_fuzziness() const { return problem.fuzziness == 2; }

    // Memberships of one input, Eq. (8), (9); `scores` holds the squared distances with the floor, `differences` v - g.
    void fuzzy_memberships(const V *centre) {
        const Real floor = static_cast<Real>(problem.floor);
        for (int64_t m = 0; m < outputs; ++m) {
            const V *v = votes + m * size(), *g = centre + m * size();
            V *difference = differences + m * size(), squared{};
            for (int h = 0; h < size(); ++h) {
                difference[h] = v[h] - g[h];
                squared += difference[h] * difference[h];
            }
            scores[m] = squared + floor;
        }
        if (plain_fuzziness()) {
            V total{};
            for (int64_t m = 0; m < outputs; ++m) total += memberships[m] = 1 / scores[m];
            total = 1 / total;
            for (int64_t m = 0; m < outputs; ++m) memberships[m] *= total;
            return;
        }
        const Real exponent = static_cast<Real>(-1 / (problem.fuzziness - 1));
        for (int64_t m = 0; m < outputs; ++m) memberships[m] = logarithm(scores[m]) * exponent;
        log_softmax(memberships);
    }

    void log_softmax(V *x) const {
        V top = x[0], total{};
        for (int64_t m = 1; m < outputs; ++m) top = larger(top, x[m]);
        for (int64_t m = 0; m < outputs; ++m) total += exponential(x[m] - top);
        top += logarithm(total);
        for (int64_t m = 0; m < outputs; ++m) x[m] -= top;
    }

    // The weight of an input before it is scaled to sum to 1, relative to what `largest` says: exp(log weight - largest).
    // With m_f = 2 it is f², and a constant factor keeps the square of a tiny membership in range.
    static constexpr Real SQUARE_SCALE = Real(1ll << 40);

    V fuzzy_weight(V membership) const { return membership * SQUARE_SCALE * (membership * SQUARE_SCALE); }

    void forward_fuzzy() {
        const Real mf = static_cast<Real>(problem.fuzziness), floor = static_cast<Real>(problem.floor);
        for (int64_t turn = 0; turn < iterations; ++turn) {
            const V *centre = turn || from_start() ? of(centres, turn) : nullptr;
            V *next = of(centres, turn + 1), *total = totals + turn * outputs, *top = largest + turn * outputs;
            clear(next, outputs * size());
            clear(total, outputs);
            if (plain_fuzziness() || !centre)
                clear(top, outputs);
            else
                std::fill_n(top, outputs, splat<Real>(-std::numeric_limits<Real>::max()));
            for_each_input([&](int64_t i, int64_t g, const V *pose) {
                vote_for_all(g, pose);
                if (centre) fuzzy_memberships(centre);
                for (int64_t m = 0; m < outputs; ++m) {
                    V weight = splat<Real>(1);
                    if (centre && plain_fuzziness()) {
                        weight = fuzzy_weight(memberships[m]);
                    } else if (centre) {
                        V log_weight = memberships[m] * mf;
                        rescale(among_existing(log_weight, i), top[m], total[m], next + m * size());
                        weight = exponential(log_weight - top[m]);
                    }
                    weight *= share_weights[i];
                    total[m] += weight;
                    add_scaled(next + m * size(), weight, votes + m * size());
                }
            });
            scale_by_totals(next, total);  // Eq. (10), (5)
        }
        if (!problem.activate) return;
        V *spread = totals + iterations * outputs;
        clear(spread, outputs);
        const V *last = of(centres, iterations);
        const V *centre = iterations > 1 || from_start() ? of(centres, iterations - 1) : nullptr;
        for_each_input([&](int64_t i, int64_t g, const V *pose) {
            vote_for_all(g, pose);
            if (centre) fuzzy_memberships(centre);
            for (int64_t m = 0; m < outputs; ++m)
                spread[m] += fuzzy_coefficient(i, m, iterations - 1, centre) * squared_distance(m, last);  // Eq. (12)
        });
        const Real *beta = static_cast<const Real *>(problem.beta);
        for (int64_t m = 0; m < outputs; ++m) {
            V logit = (beta ? beta[m] : Real(0)) - logarithm(spread[m] + floor) / 2;
            activation[m] = sigmoid<Real>(logit * static_cast<Real>(problem.sharpness));  // Eq. (13)
        }
    }

    V squared_distance(int64_t m, const V *centre) const {
        V squared{};
        for (int h = 0; h < size(); ++h) {
            V difference = votes[m * size() + h] - centre[m * size() + h];
            squared += difference * difference;
        }
        return squared;
    }

    // When a larger weight arrives, what was summed so far is scaled to it (as online softmax does).
    void rescale(V log_weight, V &top, V &total, V *sum) const {
        auto grows = log_weight > top;
        bool any = false;
        for (int lane = 0; lane < LANES; ++lane) any |= grows[lane] != 0;
        if (!any) return;
        V next = larger(log_weight, top), factor = exponential(top - next);
        top = next;
        total *= factor;
        for (int h = 0; h < size(); ++h) sum[h] *= factor;
    }

    // An input that does not exist must not set the scale that the others are measured by.
    V among_existing(V log_weight, int64_t i) const {
        return share_weights[i] > 0 ? log_weight : splat<Real>(-std::numeric_limits<Real>::max());
    }

    // What a gradient of the shares means for the activation: nothing where the input does not exist, as in base.py.
    V by_activation(V gradient, int64_t i) const { return weights_of_inputs[i] > 0 ? gradient : V{}; }

    void scale_by_totals(V *sum, V *total) const {
        for (int64_t m = 0; m < outputs; ++m) {
            total[m] = larger(total[m], splat<Real>(std::numeric_limits<Real>::min()));
            V factor = 1 / total[m];
            for (int h = 0; h < size(); ++h) sum[m * size() + h] *= factor;
        }
    }

    // w / Σ w of one input, without its activation; memberships must be those of this turn.
    V fuzzy_share(int64_t m, int64_t turn, const V *centre) const {
        V weight = splat<Real>(1);
        if (centre && plain_fuzziness())
            weight = fuzzy_weight(memberships[m]);
        else if (centre)
            weight = exponential(memberships[m] * static_cast<Real>(problem.fuzziness) - largest[turn * outputs + m]);
        return weight / totals[turn * outputs + m];
    }

    V fuzzy_coefficient(int64_t i, int64_t m, int64_t turn, const V *centre) const {
        return fuzzy_share(m, turn, centre) * share_weights[i];
    }

    void backward_fuzzy() {
        const Real mf = static_cast<Real>(problem.fuzziness), floor = static_cast<Real>(problem.floor);
        const Real exponent = static_cast<Real>(-1 / (problem.fuzziness - 1));
        const Real sharpness = static_cast<Real>(problem.sharpness);
        V *by_spread = extra;
        clear(by_spread, outputs);
        const V *spread = totals + iterations * outputs;
        if (problem.activate)
            for (int64_t m = 0; m < outputs; ++m) {
                V by_logit = activation_grad[m] * activation[m] * (1 - activation[m]) * sharpness;
                if (shared_beta_grad) shared_beta_grad[m] += sum_of_lanes<Real>(by_logit);
                by_spread[m] = by_logit * Real(-0.5) / (spread[m] + floor);
            }
        const V *last = of(centres, iterations);
        for (int64_t turn = iterations - 1; turn >= 0; --turn) {
            const bool with_spread = problem.activate && turn == iterations - 1;
            const V *centre = turn || from_start() ? of(centres, turn) : nullptr;
            const V *by_next = of(centres_grad, turn + 1);
            V *by_centre = of(centres_grad, turn);
            for (int64_t m = 0; m < outputs; ++m) {
                offsets[m] = dot(of(centres, turn + 1) + m * size(), by_next + m * size());  // Σ r ∂L/∂r
                if (with_spread) offsets[m] += by_spread[m] * spread[m];
            }
            for_each_input_backward([&](int64_t i, int64_t g, const V *pose) {
                vote_for_all(g, pose);
                if (centre) fuzzy_memberships(centre);
                V total{};
                for (int64_t m = 0; m < outputs; ++m) {
                    V by_coefficient = dot(votes + m * size(), by_next + m * size());
                    if (with_spread) by_coefficient += by_spread[m] * squared_distance(m, last);
                    V share = fuzzy_share(m, turn, centre);
                    V relative = share * (by_coefficient - offsets[m]);
                    inputs_grad[i] += by_activation(relative, i);
                    scores_grad[m] = relative * share_weights[i] * mf;  // by ln f
                    total += scores_grad[m];
                    activation_grad[m] = share * share_weights[i];  // free by now: the coefficient
                }
                for (int64_t m = 0; m < outputs; ++m) {
                    const V *v = votes + m * size();
                    const V coefficient = activation_grad[m];
                    for (int h = 0; h < size(); ++h) vote_grad[h] = coefficient * by_next[m * size() + h];
                    if (with_spread) {
                        const V factor = 2 * coefficient * by_spread[m];
                        for (int h = 0; h < size(); ++h) vote_grad[h] += factor * (v[h] - last[m * size() + h]);
                    }
                    if (centre) {
                        const V f = plain_fuzziness() ? memberships[m] : exponential(memberships[m]);
                        const V by_distance = (scores_grad[m] - f * total) * exponent / scores[m] * 2;
                        const V *difference = differences + m * size();
                        for (int h = 0; h < size(); ++h) {
                            const V step = by_distance * difference[h];
                            vote_grad[h] += step;
                            by_centre[m * size() + h] -= step;
                        }
                    }
                    pull_back(transform(g, m), pose, vote_grad, poses_grad + i * size(), transform_grad + m * rows() * rows());
                }
            });
        }
    }

    // ---- EM

    Real cost_scale() const {
        return static_cast<Real>(double(outputs) / (double(inputs) * size()));
    }

    V cost(const V *variance, int64_t m) const {
        const Real *beta_use = static_cast<const Real *>(problem.beta_use);
        V sum = splat<Real>((beta_use ? beta_use[m] : Real(0)) * size());
        for (int h = 0; h < size(); ++h) sum += logarithm(variance[m * size() + h]) / 2;
        return sum;
    }

    void activation_logits(int64_t turn) {
        const Real *beta = static_cast<const Real *>(problem.beta);
        const V *variance = of(variances, turn);
        for (int64_t m = 0; m < outputs; ++m) {
            V cost_of_use = cost(variance, m) * assigned[turn * outputs + m] * cost_scale();
            logits[turn * outputs + m] = ((beta ? beta[m] : Real(0)) - cost_of_use) * static_cast<Real>(problem.sharpness);
        }
    }

    V share(int64_t turn, int64_t i, int64_t m) const { return exponential(log_shares[(turn * inputs + i) * outputs + m]); }

    // r without the input's activation, for the M step of `turn` (1 …); turn 0 is the equal shares before it.
    V em_coefficient(int64_t turn, int64_t i, int64_t m) const {
        if (turn == 0) return 1 / totals[m];
        V log_weight = log_shares[((turn - 1) * inputs + i) * outputs + m] - largest[turn * outputs + m];
        return exponential(log_weight) / totals[turn * outputs + m];
    }

    void forward_em() {
        if (from_start()) {
            V existing{}, shared{};
            for (int64_t i = 0; i < inputs; ++i) {
                existing += weights_of_inputs[i];
                shared += share_weights[i];
            }
            for (int64_t m = 0; m < outputs; ++m) {
                totals[m] = shared;
                assigned[m] = existing / Real(outputs);
            }
            variance_about(0);
            activation_logits(0);
        }
        for (int64_t turn = 1; turn <= iterations; ++turn) {
            const V *centre = turn > 1 || from_start() ? of(centres, turn - 1) : nullptr;
            V *next = of(centres, turn), *total = totals + turn * outputs, *top = largest + turn * outputs;
            V *given = assigned + turn * outputs, *precision = of(sums, turn - 1);
            if (centre) em_constants(turn - 1, precision);
            clear(next, outputs * size());
            clear(total, outputs);
            clear(given, outputs);
            std::fill_n(top, outputs, splat<Real>(-std::numeric_limits<Real>::max()));
            for_each_input([&](int64_t i, int64_t g, const V *pose) {
                vote_for_all(g, pose);
                V *log_share = log_shares + ((turn - 1) * inputs + i) * outputs;
                if (centre) {
                    for (int64_t m = 0; m < outputs; ++m) {  // E step
                        V distance{};
                        for (int h = 0; h < size(); ++h) {
                            V difference = votes[m * size() + h] - centre[m * size() + h];
                            distance += difference * difference * precision[m * size() + h];
                        }
                        log_share[m] = memberships[m] - distance / 2;
                    }
                    log_softmax(log_share);
                } else {
                    std::fill_n(log_share, outputs, splat<Real>(std::log(Real(1) / outputs)));
                }
                for (int64_t m = 0; m < outputs; ++m) {
                    rescale(among_existing(log_share[m], i), top[m], total[m], next + m * size());
                    V weight = exponential(log_share[m] - top[m]) * share_weights[i];
                    total[m] += weight;
                    given[m] += exponential(log_share[m]) * weights_of_inputs[i];
                    add_scaled(next + m * size(), weight, votes + m * size());
                }
            });
            scale_by_totals(next, total);  // M step
            variance_about(turn);
            activation_logits(turn);
        }
        for (int64_t m = 0; m < outputs; ++m) activation[m] = sigmoid<Real>(logits[iterations * outputs + m]);
    }

    // 1 / σ² of a turn, and ln a - Σ ln(2πσ²) / 2 of each output in `memberships`.
    void em_constants(int64_t turn, V *precision) {
        const V *variance = of(variances, turn);
        for (int64_t m = 0; m < outputs; ++m) {
            V sum{};
            for (int h = 0; h < size(); ++h) {
                sum += logarithm(variance[m * size() + h]);
                precision[m * size() + h] = 1 / variance[m * size() + h];
            }
            const Real constant = static_cast<Real>(size() * std::log(2 * 3.14159265358979323846));
            memberships[m] = log_sigmoid<Real>(logits[turn * outputs + m]) - (sum + constant) / 2;
        }
    }

    void variance_about(int64_t turn) {
        const V *centre = of(centres, turn);
        V *variance = of(variances, turn);
        clear(variance, outputs * size());
        for_each_input([&](int64_t i, int64_t g, const V *pose) {
            vote_for_all(g, pose);
            for (int64_t m = 0; m < outputs; ++m) {
                const V coefficient = em_coefficient(turn, i, m) * share_weights[i];
                for (int h = 0; h < size(); ++h) {
                    V difference = votes[m * size() + h] - centre[m * size() + h];
                    variance[m * size() + h] += coefficient * difference * difference;
                }
            }
        });
        for (int64_t n = 0; n < outputs * size(); ++n) variance[n] += static_cast<Real>(problem.floor);
    }

    // From the gradient of the logits of a turn to those of β, of the variances and, in `extra`, of what was assigned.
    void backward_of_logits(int64_t turn) {
        const Real sharpness = static_cast<Real>(problem.sharpness);
        const V *variance = of(variances, turn);
        for (int64_t m = 0; m < outputs; ++m) {
            const V by_logit = logit_grad[m] * sharpness;
            const V by_cost = -by_logit * assigned[turn * outputs + m] * cost_scale();
            extra[m] = -by_logit * cost(variance, m) * cost_scale();
            if (shared_beta_grad) shared_beta_grad[m] += sum_of_lanes<Real>(by_logit);
            if (shared_beta_use_grad) shared_beta_use_grad[m] += sum_of_lanes<Real>(by_cost) * size();
            for (int h = 0; h < size(); ++h)
                variance_grad[m * size() + h] += by_cost / 2 / variance[m * size() + h];
        }
    }

    void backward_em() {
        const Real floor = static_cast<Real>(problem.floor);
        clear(variance_grad, outputs * size());
        for (int64_t m = 0; m < outputs; ++m) logit_grad[m] = activation_grad[m] * activation[m] * (1 - activation[m]);
        for (int64_t turn = iterations; turn >= 1; --turn) {
            backward_of_logits(turn);
            const bool expectation = turn > 1 || from_start();
            const V *mean = of(centres, turn), *before = of(centres, turn - 1), *variance = of(variances, turn);
            const V *by_mean = of(centres_grad, turn), *precision = of(sums, turn - 1);
            V *by_before = of(centres_grad, turn - 1);
            for (int64_t m = 0; m < outputs; ++m) {
                offsets[m] = dot(mean + m * size(), by_mean + m * size());  // Σ r ∂L/∂r
                for (int h = 0; h < size(); ++h)
                    offsets[m] += variance_grad[m * size() + h] * (variance[m * size() + h] - floor);
            }
            clear(square_sums, outputs * size());
            clear(sum_grad, outputs * size());
            clear(next_logit_grad, outputs);
            for_each_input_backward([&](int64_t i, int64_t g, const V *pose) {
                vote_for_all(g, pose);
                const V weight = weights_of_inputs[i], shared = share_weights[i];
                V total{};
                for (int64_t m = 0; m < outputs; ++m) {
                    const V *v = votes + m * size();
                    V by_coefficient{};
                    for (int h = 0; h < size(); ++h) {
                        V difference = v[h] - mean[m * size() + h];
                        by_coefficient += v[h] * by_mean[m * size() + h] + variance_grad[m * size() + h] * difference * difference;
                    }
                    const V relative = em_coefficient(turn, i, m);
                    const V part = share(turn - 1, i, m);
                    const V by_share = relative * (by_coefficient - offsets[m]), by_assigned = part * extra[m];
                    inputs_grad[i] += by_activation(by_share, i) + by_assigned;
                    scores_grad[m] = by_share * shared + by_assigned * weight;
                    total += scores_grad[m];
                    activation_grad[m] = relative * shared;  // free by now: the coefficient
                    memberships[m] = part;
                }
                for (int64_t m = 0; m < outputs; ++m) {
                    const V *v = votes + m * size();
                    const V coefficient = activation_grad[m];
                    const V by_score = scores_grad[m] - memberships[m] * total;
                    if (expectation) next_logit_grad[m] += by_score;
                    for (int h = 0; h < size(); ++h) {
                        const int64_t n = m * size() + h;
                        vote_grad[h] = coefficient * (by_mean[n] + 2 * variance_grad[n] * (v[h] - mean[n]));
                        if (expectation) {
                            const V difference = v[h] - before[n], step = by_score * difference;
                            vote_grad[h] -= step * precision[n];
                            sum_grad[n] += step;
                            square_sums[n] += step * difference;
                        }
                    }
                    pull_back(transform(g, m), pose, vote_grad, poses_grad + i * size(), transform_grad + m * rows() * rows());
                }
            });
            if (!expectation) return;
            for (int64_t m = 0; m < outputs; ++m) {
                for (int h = 0; h < size(); ++h) {
                    const int64_t n = m * size() + h;
                    by_before[n] += precision[n] * sum_grad[n];
                    variance_grad[n] = (precision[n] * square_sums[n] - next_logit_grad[m]) * precision[n] / 2;
                }
                logit_grad[m] = next_logit_grad[m] * (1 - sigmoid<Real>(logits[(turn - 1) * outputs + m]));
            }
        }
        backward_of_em_start();
    }

    // The variance about the given capsules, under equal shares.
    void backward_of_em_start() {
        const Real floor = static_cast<Real>(problem.floor);
        backward_of_logits(0);
        const V *mean = of(centres, 0), *variance = of(variances, 0);
        V *by_mean = of(centres_grad, 0);
        for (int64_t m = 0; m < outputs; ++m) {
            offsets[m] = V{};
            for (int h = 0; h < size(); ++h)
                offsets[m] += variance_grad[m * size() + h] * (variance[m * size() + h] - floor);
        }
        for_each_input_backward([&](int64_t i, int64_t g, const V *pose) {
            vote_for_all(g, pose);
            for (int64_t m = 0; m < outputs; ++m) {
                const V relative = em_coefficient(0, i, m), coefficient = relative * share_weights[i];
                V by_coefficient{};
                for (int h = 0; h < size(); ++h) {
                    const int64_t n = m * size() + h;
                    const V difference = votes[n] - mean[n], step = variance_grad[n] * difference;
                    by_coefficient += step * difference;
                    vote_grad[h] = 2 * coefficient * step;
                    by_mean[n] -= vote_grad[h];
                }
                inputs_grad[i] += by_activation(relative * (by_coefficient - offsets[m]), i) + extra[m] / Real(outputs);
                pull_back(transform(g, m), pose, vote_grad, poses_grad + i * size(), transform_grad + m * rows() * rows());
            }
        });
    }
};

template <class Real, int ROWS, int COLS>
void forward_blocks(const RoutingProblem &p) {
    typedef Block<Real, ROWS, COLS> B;
    const int64_t lanes = Lanes<Real>::count, blocks = (p.batch + lanes - 1) / lanes;
#ifdef _OPENMP
#pragma omp parallel num_threads(static_cast<int>(std::min<int64_t>(p.threads, blocks)))
#endif
    {
        Arena<Real> arena(B::arena_size(p, false));
        B block(p, arena, false);
#ifdef _OPENMP
#pragma omp for schedule(dynamic)
#endif
        for (int64_t n = 0; n < blocks; ++n) {
            block.forward(n * lanes);
            block.store(n * lanes);
        }
    }
}

template <class Real, int ROWS, int COLS>
void backward_blocks(const RoutingProblem &p) {
    typedef Block<Real, ROWS, COLS> B;
    const int64_t lanes = Lanes<Real>::count, blocks = (p.batch + lanes - 1) / lanes;
    const int64_t parts = std::min(PARTS, blocks), transforms = p.groups * p.outputs * p.rows * p.rows;
    const int64_t shared = transforms + 2 * p.outputs;
    std::vector<Real> sums(parts * shared, Real(0));
#ifdef _OPENMP
#pragma omp parallel num_threads(static_cast<int>(std::min<int64_t>(p.threads, parts)))
#endif
    {
        Arena<Real> arena(B::arena_size(p, true));
        B block(p, arena, true);
#ifdef _OPENMP
#pragma omp for schedule(dynamic)
#endif
        for (int64_t part = 0; part < parts; ++part) {
            Real *sum = sums.data() + part * shared;
            for (int64_t n = part * blocks / parts; n < (part + 1) * blocks / parts; ++n) {
                block.forward(n * lanes);
                block.backward(n * lanes, sum, sum + transforms, sum + transforms + p.outputs);
            }
        }
    }
    auto gather = [&](void *target, int64_t offset, int64_t count) {
        if (!target) return;
        for (int64_t n = 0; n < count; ++n) {
            Real total = 0;
            for (int64_t part = 0; part < parts; ++part) total += sums[part * shared + offset + n];
            static_cast<Real *>(target)[n] = total;
        }
    };
    gather(p.transforms_grad, 0, transforms);
    gather(p.beta_grad, transforms, p.outputs);
    gather(p.beta_use_grad, transforms + p.outputs, p.outputs);
}

void forward(const RoutingProblem &p) {
    const bool usual = p.rows == 4 && p.cols == 4;
    if (p.is_double) return usual ? forward_blocks<double, 4, 4>(p) : forward_blocks<double, 0, 0>(p);
    return usual ? forward_blocks<float, 4, 4>(p) : forward_blocks<float, 0, 0>(p);
}

void backward(const RoutingProblem &p) {
    const bool usual = p.rows == 4 && p.cols == 4;
    if (p.is_double) return usual ? backward_blocks<double, 4, 4>(p) : backward_blocks<double, 0, 0>(p);
    return usual ? backward_blocks<float, 4, 4>(p) : backward_blocks<float, 0, 0>(p);
}

}  // namespace VARIANT
