// What the routings have in common: a block of routing problems that are solved side by side, and the small matrix
// products that carry poses into votes and gradients back. Included inside a namespace, as lanes.h is.
#pragma once

// c[i, j] (+)= Σ_k a[i, k] b[j, k], for vectors anywhere: index i, j or k is multiplied by the stride of that name. In
// pieces of four by two, whose sums stay in registers.
template <bool ADD, class V>
static inline void contract(
    V *c, int64_t ci, int64_t cj, const V *a, int64_t ai, int64_t ak, const V *b, int64_t bj, int64_t bk, int64_t I, int64_t J,
    int64_t K) {
    const int64_t fours = I / 4 * 4, twos = J / 2 * 2;
    for (int64_t i = 0; i < fours; i += 4) {
        for (int64_t j = 0; j < twos; j += 2) {
            V s00{}, s10{}, s20{}, s30{}, s01{}, s11{}, s21{}, s31{};
            for (int64_t k = 0; k < K; ++k) {
                const V b0 = b[j * bj + k * bk], b1 = b[(j + 1) * bj + k * bk];
                const V a0 = a[i * ai + k * ak], a1 = a[(i + 1) * ai + k * ak];
                const V a2 = a[(i + 2) * ai + k * ak], a3 = a[(i + 3) * ai + k * ak];
                s00 += a0 * b0, s10 += a1 * b0, s20 += a2 * b0, s30 += a3 * b0;
                s01 += a0 * b1, s11 += a1 * b1, s21 += a2 * b1, s31 += a3 * b1;
            }
            V *place = c + i * ci + j * cj;
            const V left[4] = {s00, s10, s20, s30}, right[4] = {s01, s11, s21, s31};
            for (int n = 0; n < 4; ++n) {
                place[n * ci] = ADD ? place[n * ci] + left[n] : left[n];
                place[n * ci + cj] = ADD ? place[n * ci + cj] + right[n] : right[n];
            }
        }
        for (int64_t j = twos; j < J; ++j)
            for (int64_t n = i; n < i + 4; ++n) {
                V sum{};
                for (int64_t k = 0; k < K; ++k) sum += a[n * ai + k * ak] * b[j * bj + k * bk];
                c[n * ci + j * cj] = ADD ? c[n * ci + j * cj] + sum : sum;
            }
    }
    for (int64_t i = fours; i < I; ++i)
        for (int64_t j = 0; j < J; ++j) {
            V sum{};
            for (int64_t k = 0; k < K; ++k) sum += a[i * ai + k * ak] * b[j * bj + k * bk];
            c[i * ci + j * cj] = ADD ? c[i * ci + j * cj] + sum : sum;
        }
}

// One block of routing problems. As a rule each lane is a sample of its own. Where a batch is smaller than the lanes, and
// nothing has to be kept for a backward pass, a block is one sample and its lanes are inputs, members of the same group:
// the same sweeps run over fewer vectors, and `gather` adds up the lanes after each.
//
// ROWS and COLS are the pose size where it is known when compiling, else 0.
template <class Real_, int ROWS, int COLS>
class Block {
  public:
    typedef Real_ Real;
    typedef Vector<Real> V;
    static constexpr int LANES = Lanes<Real>::count;

    static bool runs_across_inputs(const RoutingProblem &p) {
        return !p.keep_state && p.batch < LANES && p.batch * vectors_of(p.members) < p.members;
    }

    Block(const RoutingProblem &p, Arena<Real> &arena, bool backward)
        : problem(p), across_inputs(!backward && runs_across_inputs(p)),
          members(across_inputs ? vectors_of(p.members) : p.members), inputs(p.groups * members), outputs(p.outputs),
          iterations(p.iterations), at_once(std::min(members, std::max<int64_t>(1, shortcaps_vectors_at_once / outputs))) {
        poses = arena.take(inputs * size());
        weights = arena.take(inputs);
        share_weights = arena.take(inputs);
        activation = arena.take(outputs);
        if (!backward) return;
        poses_grad = arena.take(inputs * size());
        inputs_grad = arena.take(inputs);
        activation_grad = arena.take(outputs);
        transform_grad = arena.take(outputs * rows() * rows());
    }

    void load(int64_t block) {
        first = across_inputs ? block : block * LANES;
        load_poses();
        // As in shares_over_inputs (base.py): where no input exists, all count alike.
        const Real *given = static_cast<const Real *>(problem.activations);
        V existing{};
        if (given && !across_inputs) load_by_sample(given, inputs, weights);
        for (int64_t i = 0; i < inputs; ++i) {
            if (across_inputs)
                for (int lane = 0; lane < LANES; ++lane) {
                    const int64_t input = input_of(i, lane);
                    weights[i][lane] = input < 0 ? Real(0) : given ? given[first * all_inputs() + input] : Real(1);
                }
            else if (!given)
                weights[i] = splat<Real>(1);
            existing += weights[i];
        }
        gather(&existing, 1);
        for (int64_t i = 0; i < inputs; ++i) {
            share_weights[i] = existing > 0 ? weights[i] : splat<Real>(1);
            if (across_inputs)
                for (int lane = 0; lane < LANES; ++lane)
                    if (input_of(i, lane) < 0) share_weights[i][lane] = 0;
        }
        if (from_start()) load_by_sample(static_cast<const Real *>(problem.start), outputs * size(), centres);
    }

    void store() const {
        Real *pose = static_cast<Real *>(problem.pose), *probability = static_cast<Real *>(problem.activation);
        const V *last = of(centres, iterations);
        store_by_sample(last, outputs * size(), pose);
        if (probability) store_by_sample(activation, outputs, probability);
    }

    // An activation with what the pose says added to its logit, as in `Readout` (base.py).
    void read_out() {
        for (int64_t m = 0; m < outputs; ++m) activation[m] = sigmoid<Real>(read_logit(m));
    }

    // From the gradient of what was read to those of the routing's own activation, which `resume` found again, and of its poses.
    void backward_of_readout(Real *by_weights, Real *by_bias) {
        const Real *weights_read = static_cast<const Real *>(problem.readout);
        V *by_pose = of(centres_grad, iterations);
        const V *pose = of(centres, iterations);
        for (int64_t m = 0; m < outputs; ++m) {
            const V own = activation[m], read = sigmoid<Real>(read_logit(m));
            const V by_logit = activation_grad[m] * read * (1 - read);
            // Nothing passes where the activation was limited (in float32 the sigmoid of these kernels ends above the lower limit).
            const V slope = own * (1 - own);
            activation_grad[m] = within_limits(own) == own ? by_logit / (slope > 0 ? slope : splat<Real>(1)) : V{};
            by_bias[m] += sum_of_lanes<Real>(by_logit);
            for (int64_t n = m * size(); n < (m + 1) * size(); ++n) {
                by_pose[n] += by_logit * weights_read[n];
                by_weights[n] += sum_of_lanes<Real>(by_logit * pose[n]);
            }
        }
    }

    // What the backward pass wants of the forward pass, for the samples of this block side by side.
    void keep_state() const { std::memcpy(kept(), state, state_vectors * sizeof(V)); }
    void load_state() { std::memcpy(static_cast<void *>(state), kept(), state_vectors * sizeof(V)); }
    int64_t state_numbers() const { return state_vectors; }

    void load_gradients(Real *transforms, Real *beta, Real *beta_use) {
        shared_transforms_grad = transforms, shared_beta_grad = beta, shared_beta_use_grad = beta_use;
        clear(poses_grad, inputs * size());
        clear(inputs_grad, inputs);
        clear(centres_grad, (iterations + 1) * outputs * size());
        clear(activation_grad, outputs);
        const Real *by_pose = static_cast<const Real *>(problem.pose_grad);
        const Real *by_activation = static_cast<const Real *>(problem.activation_grad);
        V *last = of(centres_grad, iterations);
        if (by_pose) load_gradient(by_pose, outputs * size(), last);
        if (by_activation) load_gradient(by_activation, outputs, activation_grad);
    }

    void store_gradients() const {
        const int64_t between = problem.pose_strides[0];
        Real *by_poses = static_cast<Real *>(problem.poses_grad) + first * between;
        for_each_run([&](int64_t offset, int64_t count, auto number) {
            Real *run = by_poses + offset;
            if (problem.rectified)
                for (int64_t n = 0; n < count; ++n) {  // in place: every number is stored once
                    V &gradient = poses_grad[number(n)];
                    gradient = poses[number(n)] <= 0 ? V{} : gradient;
                }
            if (batch_is_innermost())
                std::memcpy(run, poses_grad + number(0), sizeof(V));
            else
                scatter_runs<Real>(
                    [&](int64_t n) { return poses_grad + number(n); }, count, samples_used(),
                    [&](int lane) { return run + lane * between; });
        });
        if (problem.start_grad) store_by_sample(centres_grad, outputs * size(), static_cast<Real *>(problem.start_grad));
        if (problem.activations_grad) store_by_sample(inputs_grad, inputs, static_cast<Real *>(problem.activations_grad));
    }

  protected:
    const RoutingProblem &problem;
    const bool across_inputs;
    const int64_t members, inputs, outputs, iterations;  // inputs and members: vectors of them
    const int64_t at_once;                               // members in a piece, see below
    int64_t first = 0;                                    // the first sample of the block

    V *poses, *activation;
    V *weights;        // what an input's activation says it weighs
    V *share_weights;  // the same, or 1 where no input exists: shares are always of something
    V *centres;        // the class capsules before each turn and after the last
    V *state = nullptr;
    int64_t state_vectors = 0;
    V *poses_grad, *inputs_grad, *centres_grad, *activation_grad, *transform_grad;
    Real *shared_transforms_grad, *shared_beta_grad, *shared_beta_use_grad;

    int rows() const { return ROWS ? ROWS : static_cast<int>(problem.rows); }
    int cols() const { return COLS ? COLS : static_cast<int>(problem.cols); }
    int size() const { return rows() * cols(); }
    V *of(V *array, int64_t turn) const { return array + turn * outputs * size(); }
    const Real *transform(int64_t group, int64_t m) const {
        return static_cast<const Real *>(problem.transforms) + (group * outputs + m) * rows() * rows();
    }

    // What has a number for each input and output exists for one piece at a time: for members of one group, so many that it
    // takes up at most `shortcaps_vectors_at_once`. As a rule that is the whole group.
    struct Piece {
        int64_t group, input, count;  // input: the first of them
    };
    template <class Body>
    void for_each_piece(Body body) const {
        for (int64_t g = 0; g < problem.groups; ++g)
            for (int64_t s = 0; s < members; s += at_once)
                body(Piece{g, g * members + s, std::min(at_once, members - s)});
    }
    const V *poses_of(const Piece &piece) const { return poses + piece.input * size(); }

    bool from_start() const { return problem.start != nullptr; }
    // The capsules that inputs are compared with in a turn, or null: the first turn from scratch knows none.
    const V *compared(int64_t turn) const { return turn || from_start() ? of(centres, turn) : nullptr; }
    int64_t all_inputs() const { return problem.groups * problem.members; }

    static void clear(V *array, int64_t count) { std::memset(static_cast<void *>(array), 0, count * sizeof(V)); }

    // After a sweep: where lanes are inputs, their sums.
    void gather(V *array, int64_t count) const {
        if (!across_inputs) return;
        for (int64_t n = 0; n < count; ++n) array[n] = splat(sum_of_lanes<Real>(array[n]));
    }

    void gather_largest(V *array, int64_t count) const {
        if (!across_inputs) return;
        for (int64_t n = 0; n < count; ++n)
            for (int lane = 0; lane < LANES; ++lane) array[n] = larger(array[n], splat<Real>(array[n][lane]));
    }

    // v = T p.
    void vote(const Real *__restrict T, const V *__restrict pose, V *__restrict v) const {
        for (int r = 0; r < rows(); ++r)
            for (int c = 0; c < cols(); ++c) {
                V sum = pose[c] * T[r * rows()];
                for (int k = 1; k < rows(); ++k) sum += pose[k * cols() + c] * T[r * rows() + k];
                v[r * cols() + c] = sum;
            }
    }

    // v - g, and its squared length.
    V difference(const Real *__restrict T, const V *__restrict pose, const V *__restrict centre, V *__restrict result) const {
        V squared{};
        for (int r = 0; r < rows(); ++r)
            for (int c = 0; c < cols(); ++c) {
                V sum = pose[c] * T[r * rows()] - centre[r * cols() + c];
                for (int k = 1; k < rows(); ++k) sum += pose[k * cols() + c] * T[r * rows() + k];
                result[r * cols() + c] = sum;
                squared += sum * sum;
            }
        return squared;
    }

    // y (+)= Tᵀ x: what an output says, as its inputs hear it.
    template <bool ADD>
    void transposed(const Real *__restrict T, const V *__restrict x, V *__restrict y) const {
        for (int k = 0; k < rows(); ++k)
            for (int c = 0; c < cols(); ++c) {
                V sum = ADD ? y[k * cols() + c] : V{};
                for (int r = 0; r < rows(); ++r) sum += x[r * cols() + c] * T[r * rows() + k];
                y[k * cols() + c] = sum;
            }
    }

    void add_product(const Real *__restrict T, const V *__restrict x, V *__restrict y) const {
        for (int r = 0; r < rows(); ++r)
            for (int c = 0; c < cols(); ++c) {
                V sum = y[r * cols() + c];
                for (int k = 0; k < rows(); ++k) sum += x[k * cols() + c] * T[r * rows() + k];
                y[r * cols() + c] = sum;
            }
    }

    // by_transform += by_vote poseᵀ.
    void add_outer(const V *__restrict by_vote, const V *__restrict pose, V *__restrict by_transform) const {
        for (int r = 0; r < rows(); ++r)
            for (int k = 0; k < rows(); ++k) {
                V sum = by_transform[r * rows() + k];
                for (int c = 0; c < cols(); ++c) sum += by_vote[r * cols() + c] * pose[k * cols() + c];
                by_transform[r * rows() + k] = sum;
            }
    }

    // Adds the lanes of transform_grad, which is that of one group, to the gradient they share.
    void add_transform_gradients(int64_t group) {
        const int64_t count = outputs * rows() * rows();
        add_sums_of_lanes<Real>(transform_grad, count, shared_transforms_grad + group * count);
    }

    V dot(const V *a, const V *b) const {
        V sum = a[0] * b[0];
        for (int h = 1; h < size(); ++h) sum += a[h] * b[h];
        return sum;
    }

    void add_scaled(V *__restrict target, V factor, const V *__restrict source) const {
        for (int h = 0; h < size(); ++h) target[h] += factor * source[h];
    }

    void softmax(V *x) const {
        V top = x[0], total{};
        for (int64_t m = 1; m < outputs; ++m) top = larger(top, x[m]);
        for (int64_t m = 0; m < outputs; ++m) total += x[m] = exponential(x[m] - top);
        total = Real(1) / total;
        for (int64_t m = 0; m < outputs; ++m) x[m] *= total;
    }

    void log_softmax(V *x) const {
        V top = x[0], total{};
        for (int64_t m = 1; m < outputs; ++m) top = larger(top, x[m]);
        for (int64_t m = 0; m < outputs; ++m) total += exponential(x[m] - top);
        top += logarithm(total);
        for (int64_t m = 0; m < outputs; ++m) x[m] -= top;
    }

    void scale_by_totals(V *sum, V *total) const {
        for (int64_t m = 0; m < outputs; ++m) {
            total[m] = larger(total[m], splat<Real>(std::numeric_limits<Real>::min()));
            const V factor = 1 / total[m];
            for (int h = 0; h < size(); ++h) sum[m * size() + h] *= factor;
        }
    }

    // What a gradient of the shares means for the activation: nothing where the input does not exist, as in base.py.
    V by_activation(V gradient, int64_t i) const { return weights[i] > 0 ? gradient : V{}; }

  private:
    // Only what is no number any more is raised, as in base.py.
    static V within_limits(V a) {
        typedef std::numeric_limits<Real> Limits;
        return smaller(larger(a, splat<Real>(Limits::min())), splat<Real>(1 - Limits::epsilon()));
    }
    V read_logit(int64_t m) const {
        const Real *w = static_cast<const Real *>(problem.readout) + m * size();
        const V *pose = of(centres, iterations) + m * size(), a = within_limits(activation[m]);
        V sum = logarithm(a / (1 - a)) + static_cast<const Real *>(problem.readout_bias)[m];
        for (int h = 0; h < size(); ++h) sum += pose[h] * w[h];
        return sum;
    }
    static int64_t vectors_of(int64_t count) { return (count + LANES - 1) / LANES; }
    int samples_used() const {
        return across_inputs ? 1 : static_cast<int>(std::min<int64_t>(LANES, problem.batch - first));
    }
    // Lanes beyond the batch repeat its last sample: real numbers, whose results and gradients are not used.
    int64_t sample(int lane) const { return across_inputs ? first : std::min(first + lane, problem.batch - 1); }
    // The number of the input in a lane of vector i, or -1 where the members of its group end before.
    int64_t input_of(int64_t i, int lane) const {
        if (!across_inputs) return i;
        const int64_t member = i % members * LANES + lane;
        return member < problem.members ? i / members * problem.members + member : -1;
    }
    Real *kept() const {
        return static_cast<Real *>(problem.state) + first * state_vectors;
    }

    bool batch_is_innermost() const {
        return !across_inputs && problem.pose_strides[0] == 1 && samples_used() == LANES;
    }
    bool pose_is_contiguous() const { return problem.pose_strides[4] == 1 && problem.pose_strides[3] == cols(); }

    // Calls `body` with every run of numbers that lie side by side in the memory of a sample's poses: where it begins, how long it
    // is, and which vector its n-th number belongs to. What lies side by side depends on who wrote the poses.
    template <class Body>
    void for_each_run(Body body) const {
        const int64_t *stride = problem.pose_strides, groups = problem.groups;
        const int64_t pose = size(), group = members * pose;
        if (pose_is_contiguous()) {
            for (int64_t g = 0; g < groups; ++g)
                for (int64_t s = 0; s < members; ++s)
                    body(g * stride[1] + s * stride[2], pose, [=](int64_t n) { return g * group + s * pose + n; });
            return;
        }
        // Convolutions whose channels are innermost: rows, then groups.
        if (stride[3] == 1 && stride[1] == rows()) {
            const int64_t height = rows(), width = cols();
            for (int64_t s = 0; s < members; ++s)
                for (int64_t c = 0; c < width; ++c)
                    body(s * stride[2] + c * stride[4], groups * height, [=](int64_t n) {
                        return n / height * group + s * pose + n % height * width + c;
                    });
            return;
        }
        // Other convolutions: the positions of a channel. Where the batch is innermost every number is by itself.
        const int64_t count = stride[2] == 1 && !batch_is_innermost() ? members : 1;
        for (int64_t g = 0; g < groups; ++g)
            for (int64_t s = 0; s < members; s += count)
                for (int r = 0; r < rows(); ++r)
                    for (int c = 0; c < cols(); ++c)
                        body(g * stride[1] + s * stride[2] + r * stride[3] + c * stride[4], count, [=](int64_t n) {
                            return g * group + (s + n) * pose + r * cols() + c;
                        });
    }

    void load_poses() {
        const int64_t between = problem.pose_strides[0];
        const Real *given = static_cast<const Real *>(problem.poses);
        if (across_inputs) {
            for (int64_t g = 0; g < problem.groups; ++g)
                for (int64_t s = 0; s < members; ++s)
                    load_members(given + first * between + g * problem.pose_strides[1], s * LANES, poses + (g * members + s) * size());
            return;
        }
        for_each_run([&](int64_t offset, int64_t count, auto number) {
            const Real *run = given + offset;
            if (batch_is_innermost())
                std::memcpy(poses + number(0), run + first, sizeof(V));
            else
                gather_runs<Real>(
                    [&](int lane) { return run + sample(lane) * between; }, count,
                    [&](int64_t n) { return poses + number(n); });
            if (problem.rectified)
                for (int64_t n = 0; n < count; ++n) rectify(poses[number(n)]);
        });
    }

    static void rectify(V &x) { x = larger(x, V{}); }

    // The members from `member` on, one in each lane; zeros where there are no more.
    void load_members(const Real *place, int64_t member, V *target) const {
        const int64_t *stride = problem.pose_strides, between = stride[2];
        const int used = static_cast<int>(std::min<int64_t>(LANES, problem.members - member));
        clear(target, size());
        for (int r = 0; r < rows(); ++r)
            for (int c = 0; c < cols(); ++c) {
                const Real *from = place + member * between + r * stride[3] + c * stride[4];
                V &number = target[r * cols() + c];
                if (between == 1)
                    number = load_lanes<Real>(from, used);
                else
                    for (int lane = 0; lane < used; ++lane) number[lane] = from[lane * between];
                if (problem.rectified) rectify(number);
            }
    }

    void load_by_sample(const Real *source, int64_t count, V *target) const {
        gather_rows<Real>([&](int lane) { return source + sample(lane) * count; }, count, target, 1);
    }
    // As load_by_sample, with zeros in the lanes beyond the batch: nothing depends on them.
    void load_gradient(const Real *source, int64_t count, V *target) const {
        load_by_sample(source, count, target);
        for (int lane = samples_used(); lane < LANES; ++lane)
            for (int64_t n = 0; n < count; ++n) target[n][lane] = 0;
    }
    void store_by_sample(const V *source, int64_t count, Real *target) const {
        scatter_rows<Real>(source, 1, count, samples_used(), [&](int lane) { return target + (first + lane) * count; });
    }
};

// What a routing takes from Block: a template has to say so by name.
#define SHORTCAPS_FROM_BLOCK                                                                                              \
    typedef Block<Real, ROWS, COLS> Base;                                                                                 \
    typedef typename Base::Piece Piece;                                                                                   \
    typedef Vector<Real> V;                                                                                               \
    using Base::across_inputs, Base::problem, Base::members, Base::inputs, Base::outputs, Base::iterations;               \
    using Base::activation, Base::centres, Base::poses, Base::share_weights, Base::state, Base::state_vectors;            \
    using Base::activation_grad, Base::centres_grad, Base::inputs_grad, Base::poses_grad, Base::transform_grad;           \
    using Base::add_outer, Base::add_product, Base::add_scaled, Base::add_transform_gradients, Base::all_inputs;          \
    using Base::by_activation, Base::clear, Base::cols, Base::compared, Base::difference, Base::dot, Base::from_start;    \
    using Base::gather, Base::gather_largest, Base::log_softmax, Base::of, Base::poses_of, Base::rows, Base::scale_by_totals;       \
    using Base::at_once, Base::for_each_piece;                                                                            \
    using Base::shared_beta_grad, Base::shared_beta_use_grad, Base::size, Base::softmax, Base::transform;  \
    using Base::vote, Base::weights
