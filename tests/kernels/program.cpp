// The kernels by themselves, without Python: every kind of routing, the depth-wise convolution, the mix and squash, over awkward
// shapes, at one and three threads, as a whole and in pieces. Every gradient is compared with a difference quotient in float64, and every buffer is
// exactly as large as it has to be, so that the address and undefined-behaviour sanitizers, with which the test suite builds
// this program (test_program.py), see any step outside.

#include "local.h"
#include "routing.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

extern "C" {
int64_t shortcaps_route_forward(const RoutingProblem *);
int64_t shortcaps_route_backward(const RoutingProblem *);
int64_t shortcaps_route_state_size(const RoutingProblem *);
int64_t shortcaps_local_forward(const LocalProblem *);
int64_t shortcaps_local_backward(const LocalProblem *);
int64_t shortcaps_mix_forward(const MixProblem *);
int64_t shortcaps_mix_backward(const MixProblem *);
int64_t shortcaps_squash_forward(const SquashProblem *);
int64_t shortcaps_squash_backward(const SquashProblem *);
void shortcaps_set_work_per_thread(int64_t);
int64_t shortcaps_set_vectors_at_once(int64_t);
int shortcaps_limit_variant(int);
}

static std::mt19937 generator(0);
static int checks = 0;

template <class Real>
static std::vector<Real> random_numbers(int64_t count, double low = -1, double high = 1) {
    std::uniform_real_distribution<double> uniform(low, high);
    std::vector<Real> numbers(count);
    for (Real &number : numbers) number = static_cast<Real>(uniform(generator));
    return numbers;
}

template <class Real>
static double dot(const std::vector<Real> &a, const std::vector<Real> &b) {
    double sum = 0;
    for (size_t n = 0; n < a.size(); ++n) sum += double(a[n]) * double(b[n]);
    return sum;
}

static void expect(double found, double wanted, double tolerance, const char *what) {
    ++checks;
    if (std::fabs(found - wanted) <= tolerance * std::fmax(1, std::fabs(wanted))) return;
    std::printf("%s: %.10g instead of %.10g\n", what, found, wanted);
    std::exit(1);
}

static void solved(int64_t code) { expect(code, 0, 0, "what an entry point returns"); }

// The derivative of `loss` along a random direction of `numbers`, against what the gradient says it is.
template <class Real>
static void check_gradient(
    std::vector<Real> &numbers, const std::vector<Real> &gradient, const std::function<double()> &loss, const char *what) {
    if (sizeof(Real) == 4) {  // too coarse for difference quotients: only that it is a number
        for (Real value : gradient) expect(std::isfinite(value), 1, 0, what);
        return;
    }
    const std::vector<Real> direction = random_numbers<Real>(numbers.size()), before = numbers;
    const double step = 1e-6;
    double values[2];
    for (int side = 0; side < 2; ++side) {
        for (size_t n = 0; n < numbers.size(); ++n) numbers[n] = before[n] + (side ? step : -step) * direction[n];
        values[side] = loss();
    }
    numbers = before;
    expect(dot(gradient, direction), (values[1] - values[0]) / (2 * step), 1e-4, what);
}

struct Shape {
    int64_t batch, groups, members, outputs, rows, cols, iterations;
};

template <class Real>
static void check_routing(
    int64_t kind, const Shape &s, bool from_start, bool given_activations, bool reads, double softness, int threads) {
    const int64_t inputs = s.groups * s.members, size = s.rows * s.cols;
    auto poses = random_numbers<Real>(s.batch * inputs * size), transforms = random_numbers<Real>(s.groups * s.outputs * s.rows * s.rows);
    auto start = random_numbers<Real>(s.batch * s.outputs * size), activations = random_numbers<Real>(s.batch * inputs, 0.2, 1);
    auto beta = random_numbers<Real>(s.outputs), beta_use = random_numbers<Real>(s.outputs);
    auto readout = random_numbers<Real>(s.outputs * size), readout_bias = random_numbers<Real>(s.outputs);
    std::vector<Real> pose(s.batch * s.outputs * size), activation(s.batch * s.outputs);

    RoutingProblem p{};
    p.kind = kind, p.iterations = s.iterations, p.activate = 1, p.threads = threads, p.is_double = sizeof(Real) == 8;
    p.batch = s.batch, p.groups = s.groups, p.members = s.members, p.outputs = s.outputs, p.rows = s.rows, p.cols = s.cols;
    const int64_t strides[5] = {inputs * size, s.members * size, size, s.cols, 1};
    std::memcpy(p.pose_strides, strides, sizeof strides);
    p.softness = softness, p.sharpness = 1, p.floor = 0.1;
    p.poses = poses.data(), p.transforms = transforms.data(), p.beta = beta.data(), p.beta_use = beta_use.data();
    if (from_start) p.start = start.data();
    if (given_activations) p.activations = activations.data();
    if (reads) p.readout = readout.data(), p.readout_bias = readout_bias.data();
    p.pose = pose.data(), p.activation = activation.data();

    const auto by_pose = random_numbers<Real>(pose.size()), by_activation = random_numbers<Real>(activation.size());
    const auto loss = [&] {
        solved(shortcaps_route_forward(&p));
        return dot(pose, by_pose) + dot(activation, by_activation);
    };
    const double plain = loss();  // small batches: lanes are inputs

    // A vector of the widest instruction set is 64 bytes, and what is kept is read as such.
    const int64_t numbers = shortcaps_route_state_size(&p) * ((s.batch + 15) / 16 * 16);
    Real *state = static_cast<Real *>(std::aligned_alloc(64, (numbers * sizeof(Real) + 63) / 64 * 64));
    p.state = state, p.keep_state = 1;
    expect(loss(), plain, sizeof(Real) == 8 ? 1e-9 : 1e-3, "the same with and without a way back");

    std::vector<Real> poses_grad(poses.size()), transforms_grad(transforms.size()), start_grad(start.size());
    std::vector<Real> activations_grad(activations.size()), beta_grad(beta.size()), beta_use_grad(beta_use.size());
    p.pose_grad = by_pose.data(), p.activation_grad = by_activation.data();
    p.poses_grad = poses_grad.data(), p.transforms_grad = transforms_grad.data();
    if (from_start) p.start_grad = start_grad.data();
    if (given_activations) p.activations_grad = activations_grad.data();
    p.beta_grad = beta_grad.data(), p.beta_use_grad = beta_use_grad.data();
    std::vector<Real> readout_grad(readout.size()), readout_bias_grad(readout_bias.size());
    if (reads) p.readout_grad = readout_grad.data(), p.readout_bias_grad = readout_bias_grad.data();
    solved(shortcaps_route_backward(&p));
    p.keep_state = 0;

    check_gradient(poses, poses_grad, loss, "gradient of the poses");
    check_gradient(transforms, transforms_grad, loss, "gradient of the transformations");
    if (from_start) check_gradient(start, start_grad, loss, "gradient of the start");
    if (given_activations) check_gradient(activations, activations_grad, loss, "gradient of the activations");
    // A kind that does not use them has gradients of zero.
    check_gradient(beta, beta_grad, loss, "gradient of beta");
    check_gradient(beta_use, beta_use_grad, loss, "gradient of beta_use");
    if (reads) check_gradient(readout, readout_grad, loss, "gradient of the readout");
    if (reads) check_gradient(readout_bias, readout_bias_grad, loss, "gradient of the readout's bias");

    // Read through a ReLU, poses give what rectified ones give, and their gradient passes where it does.
    const std::vector<Real> given = poses;
    for (Real &number : poses) number = std::max(number, Real(0));
    p.keep_state = 1;
    const double rectified = loss();
    solved(shortcaps_route_backward(&p));
    const std::vector<Real> by_rectified = poses_grad;
    poses = given;
    p.rectified = 1;
    expect(loss(), rectified, 0, "poses read through a ReLU");
    solved(shortcaps_route_backward(&p));
    for (size_t n = 0; n < poses.size(); ++n)
        expect(poses_grad[n], given[n] > 0 ? by_rectified[n] : 0, 0, "gradient of a pose read through a ReLU");
    p.keep_state = 0;
    expect(loss(), rectified, sizeof(Real) == 8 ? 1e-9 : 1e-3, "the same without a way back");
    std::free(state);
}

template <class Real>
static void check_local(int64_t batch, int64_t rows, int64_t width, int64_t stride, bool innermost, bool scaled, int threads) {
    const int64_t cols = 3, channels = 2, height = 5, kernel = 2;
    LocalProblem p{};
    p.threads = threads, p.is_double = sizeof(Real) == 8, p.batch = batch, p.cols = cols, p.channels = channels, p.rows = rows;
    p.height = height, p.width = width, p.kernel_height = kernel, p.kernel_width = kernel, p.stride = stride;
    p.out_height = (height - kernel) / stride + 1, p.out_width = (width - kernel) / stride + 1;
    const int64_t apart[6] = {cols * channels * rows * height * width, channels * rows * height * width, rows * height * width,
                              height * width, width, 1};
    for (int n = 0; n < 6; ++n) p.map_strides[n] = innermost ? (n ? apart[n] * batch : 1) : apart[n];
    auto maps = random_numbers<Real>(batch * apart[0]), transform = random_numbers<Real>(channels * kernel * kernel * rows * rows);
    auto scale = random_numbers<Real>(batch * channels * height * width);
    std::vector<Real> out(cols * channels * rows * p.out_height * p.out_width * batch);
    p.maps = maps.data(), p.transform = transform.data(), p.out = out.data();
    if (scaled) p.scale = scale.data();
    const auto by_out = random_numbers<Real>(out.size());
    const auto loss = [&] {
        solved(shortcaps_local_forward(&p));
        return dot(out, by_out);
    };
    loss();
    std::vector<Real> maps_grad(maps.size()), transform_grad(transform.size());
    p.out_grad = by_out.data(), p.maps_grad = maps_grad.data(), p.transform_grad = transform_grad.data();
    solved(shortcaps_local_backward(&p));
    check_gradient(maps, maps_grad, loss, "gradient of the maps");
    check_gradient(transform, transform_grad, loss, "gradient of the depth-wise transformations");
}

template <class Real>
static void check_mix(int64_t in_channels, int64_t out_channels, int64_t numbers, int threads) {
    MixProblem p{};
    p.threads = threads, p.is_double = sizeof(Real) == 8, p.cols = 3;
    p.in_channels = in_channels, p.out_channels = out_channels, p.numbers = numbers;
    auto maps = random_numbers<Real>(3 * in_channels * numbers), mix = random_numbers<Real>(out_channels * in_channels);
    std::vector<Real> out(3 * out_channels * numbers), maps_grad(maps.size()), mix_grad(mix.size());
    p.maps = maps.data(), p.mix = mix.data(), p.out = out.data();
    const auto by_out = random_numbers<Real>(out.size());
    const auto loss = [&] {
        solved(shortcaps_mix_forward(&p));
        return dot(out, by_out);
    };
    loss();
    p.out_grad = by_out.data(), p.maps_grad = maps_grad.data(), p.mix_grad = mix_grad.data();
    solved(shortcaps_mix_backward(&p));
    check_gradient(maps, maps_grad, loss, "gradient of the mixed maps");
    check_gradient(mix, mix_grad, loss, "gradient of the mix");
}

template <class Real>
static void check_squash(int64_t channels, int64_t rows, int64_t places, int threads) {
    SquashProblem p{};
    p.threads = threads, p.is_double = sizeof(Real) == 8, p.outer = 1 + places % 3, p.cols = 3, p.channels = channels, p.rows = rows, p.places = places;
    auto poses = random_numbers<Real>(p.outer * 3 * channels * rows * places);
    std::vector<Real> out(poses.size()), poses_grad(poses.size());
    p.poses = poses.data(), p.out = out.data();
    const auto by_out = random_numbers<Real>(out.size());
    const auto loss = [&] {
        solved(shortcaps_squash_forward(&p));
        return dot(out, by_out);
    };
    loss();
    p.out_grad = by_out.data(), p.poses_grad = poses_grad.data();
    solved(shortcaps_squash_backward(&p));
    check_gradient(poses, poses_grad, loss, "gradient of squash");
}

// What is not a kind is refused before anything is read or written: there are no pointers here.
static void check_unknown_kinds() {
    for (int64_t kind : {int64_t(-1), int64_t(ROUTING_KINDS), INT64_MAX})
        for (int64_t is_double : {0, 1})
            for (int64_t rows : {3, 4}) {
                RoutingProblem p{};
                p.kind = kind, p.is_double = is_double, p.iterations = p.batch = p.groups = p.members = p.outputs = 1;
                p.rows = rows, p.cols = 4;
                for (auto entry : {shortcaps_route_forward, shortcaps_route_backward, shortcaps_route_state_size})
                    expect(entry(&p), UNKNOWN_KIND, 0, "what is returned for a kind that there is not");
            }
}

template <class Real>
static void check_all(int threads) {
    const Shape shapes[] = {
        {1, 1, 1, 1, 1, 1, 1}, {1, 3, 9, 5, 4, 4, 2}, {2, 2, 25, 3, 4, 4, 2}, {9, 4, 1, 6, 4, 4, 2},
        {17, 2, 5, 3, 4, 4, 3}, {3, 2, 17, 4, 2, 3, 2}, {11, 3, 2, 2, 5, 1, 2},
    };
    for (const Shape &shape : shapes)
        for (int64_t kind = 0; kind < ROUTING_KINDS; ++kind)
            for (int options = 0; options < 8; ++options)
                for (double softness : {2.0, 1.6})
                    check_routing<Real>(kind, shape, options & 1, options & 2, options & 4, softness, threads);
    for (int64_t batch : {1, 3, 8, 19})
        for (int options = 0; options < 4; ++options)
            check_local<Real>(batch, options == 3 ? 3 : 4, 4 + batch % 3, 1 + options % 2, options & 1, options & 2, threads);
    for (int64_t numbers : {1, 7, 64, 5000}) check_mix<Real>(1 + numbers % 6, 1 + numbers % 10, numbers, threads);
    for (int64_t places : {1, 7, 64, 1000}) check_squash<Real>(2, places % 2 ? 4 : 3, places, threads);
    for (int64_t channels : {1, 32, 67}) check_squash<Real>(channels, 4, 1, threads);
    for (int64_t rows : {128, 129}) check_squash<Real>(3, rows, 1, threads);
}

int main() {
    shortcaps_set_work_per_thread(1);
    for (int variant = 0; variant < 3; ++variant) {
        if (!shortcaps_limit_variant(variant)) continue;
        check_unknown_kinds();
        for (int threads : {1, 3})
            for (int64_t at_once : {1 << 18, 7}) {  // as a whole, and in pieces
                shortcaps_set_vectors_at_once(at_once);
                check_all<double>(threads);
                check_all<float>(threads);
            }
    }
    std::printf("%d checks passed\n", checks);
}
