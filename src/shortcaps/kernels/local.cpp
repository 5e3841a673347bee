// The depth-wise capsule convolution, Eq. (3), for a block of samples, one column of the poses and one channel at a time:
// a plain convolution whose every multiply–add is a vector of samples and a broadcast number. The point-wise mix, Eq. (2).
// And squash, for the maps that attention and dynamic routing pass from layer to layer.
//
// This file is compiled once for each instruction set; `VARIANT` names the namespace.

#include "local.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <type_traits>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace VARIANT {

#include "lanes.h"
#include "arena.h"

namespace {

// The gradient of a channel's transformations is summed in this many parts, whatever the number of threads.
constexpr int64_t LOCAL_PARTS = 4;
// Channels that a thread goes through together: with channels innermost, the poses of so many share a line of the cache.
constexpr int64_t GROUP = 4;

template <class Real, int ROWS>
class Convolution {
    typedef Vector<Real> V;
    static constexpr int LANES = Lanes<Real>::count;

  public:
    Convolution(const LocalProblem &problem, Arena<Real> &arena)
        : p(problem), taps(p.kernel_height * p.kernel_width), column(p.rows * p.height * p.width) {
        x = arena.take(GROUP * column);
        by_x = arena.take(GROUP * column);
        by_transform = arena.take(GROUP * taps * p.rows * p.rows);
        values = arena.take(p.rows);
        factors = arena.take(p.height * p.width);
    }

    // One column of the channels of a group, for a block of samples.
    void forward(int64_t group, int64_t c, int64_t first) {
        load(group, c, first);
        for (int64_t n = group * GROUP; n < end_of(group); ++n) {
            apply_scale(scratch(x, n), n, first);
            forward_of_channel(n, c, first);
        }
    }

    void clear_transform_gradients() {
        std::memset(static_cast<void *>(by_transform), 0, GROUP * taps * rows() * rows() * sizeof(V));
    }

    void backward(int64_t group, int64_t c, int64_t first) {
        load(group, c, first);
        std::memset(static_cast<void *>(by_x), 0, GROUP * column * sizeof(V));
        for (int64_t n = group * GROUP; n < end_of(group); ++n) {
            apply_scale(scratch(x, n), n, first);
            backward_of_channel(n, c, first);
            apply_scale(scratch(by_x, n), n, first);
        }
        store_gradient(group, c, first);
    }

    void add_transform_gradient(int64_t n, Real *target) const {
        const int64_t size = taps * rows() * rows();
        add_sums_of_lanes<Real>(by_transform + n % GROUP * size, size, target);
    }

    int64_t end_of(int64_t group) const { return std::min((group + 1) * GROUP, p.channels); }

  private:
    const LocalProblem &p;
    const int64_t taps, column;
    V *x, *by_x, *by_transform, *values, *factors;

    void forward_of_channel(int64_t n, int64_t c, int64_t first) {
        const int lanes = lanes_used(first);
        for (int64_t i = 0; i < p.out_height; ++i)
            for (int64_t j = 0; j < p.out_width; ++j) {
                for (int r = 0; r < rows(); ++r) values[r] = V{};
                for (int64_t w = 0; w < p.kernel_height; ++w)
                    for (int64_t h = 0; h < p.kernel_width; ++h) {
                        const Real *__restrict T = transform(n, w, h);
                        const V *__restrict place = at(scratch(x, n), i * p.stride + w, j * p.stride + h);
                        V *__restrict sums = values;
                        for (int r = 0; r < rows(); ++r)
                            for (int k = 0; k < rows(); ++k) sums[r] += place[k] * T[r * rows() + k];
                    }
                for (int r = 0; r < rows(); ++r)
                    store_lanes<Real>(out(p.out, n, c, r, i, j) + first, values[r], lanes);
            }
    }

    void backward_of_channel(int64_t n, int64_t c, int64_t first) {
        const int lanes = lanes_used(first);
        for (int64_t i = 0; i < p.out_height; ++i)
            for (int64_t j = 0; j < p.out_width; ++j) {
                for (int r = 0; r < rows(); ++r)
                    values[r] = load_lanes<Real>(out(p.out_grad, n, c, r, i, j) + first, lanes);
                for (int64_t w = 0; w < p.kernel_height; ++w)
                    for (int64_t h = 0; h < p.kernel_width; ++h)
                        backward_of_tap(
                            transform(n, w, h), at(scratch(x, n), i * p.stride + w, j * p.stride + h), values,
                            at(scratch(by_x, n), i * p.stride + w, j * p.stride + h),
                            by_transform + (n % GROUP * taps + w * p.kernel_width + h) * rows() * rows());
            }
    }

    void backward_of_tap(
        const Real *__restrict T, const V *__restrict place, const V *__restrict by_out, V *__restrict by_place,
        V *__restrict by_tap) const {
        for (int k = 0; k < rows(); ++k) {
            V sum = by_place[k];
            for (int r = 0; r < rows(); ++r) sum += by_out[r] * T[r * rows() + k];
            by_place[k] = sum;
        }
        for (int r = 0; r < rows(); ++r)
            for (int k = 0; k < rows(); ++k) by_tap[r * rows() + k] += by_out[r] * place[k];
    }

    int rows() const { return ROWS ? ROWS : static_cast<int>(p.rows); }
    int lanes_used(int64_t first) const { return static_cast<int>(std::min<int64_t>(LANES, p.batch - first)); }
    // Scratch is (channels of a group, height, width, rows), so that a tap reads `rows` vectors side by side.
    V *scratch(V *group, int64_t n) const { return group + n % GROUP * column; }
    V *at(V *channel, int64_t y, int64_t x_) const { return channel + (y * p.width + x_) * rows(); }
    const Real *transform(int64_t n, int64_t w, int64_t h) const {
        return static_cast<const Real *>(p.transform) + ((n * p.kernel_height + w) * p.kernel_width + h) * rows() * rows();
    }
    template <class Pointer>
    auto out(Pointer base, int64_t n, int64_t c, int r, int64_t i, int64_t j) const {
        const int64_t index = ((((c * p.channels + n) * rows() + r) * p.out_height + i) * p.out_width + j) * p.batch;
        if constexpr (std::is_const_v<std::remove_pointer_t<Pointer>>)
            return static_cast<const Real *>(base) + index;
        else
            return static_cast<Real *>(base) + index;
    }

    // How maps lie in memory. With the batch innermost they are vectors as they are; with the width innermost, lines of a map
    // are turned into vectors; with channels innermost, as convolutions like them best, the poses of a group at one place.
    bool batch_is_innermost() const { return p.map_strides[0] == 1 && (p.batch > 1 || p.map_strides[5] != 1); }
    bool width_is_innermost() const { return p.map_strides[5] == 1 || p.width == 1; }
    bool channels_are_innermost() const { return p.map_strides[3] == 1 && (p.map_strides[2] == p.rows || p.channels == 1); }

    // Calls body(vector, offset in the maps of a sample) for every number of a group.
    template <class Body>
    void for_each_number(V *group, int64_t begin, int64_t end, Body body) const {
        const int64_t *s = p.map_strides;
        for (int64_t n = begin; n < end; ++n)
            for (int64_t y = 0; y < p.height; ++y)
                for (int64_t z = 0; z < p.width; ++z)
                    for (int k = 0; k < rows(); ++k)
                        body(at(scratch(group, n), y, z) + k, n * s[2] + k * s[3] + y * s[4] + z * s[5]);
    }

    // Calls body(numbers side by side, their offset, where the vector of each is) for every such run of a group.
    template <class Body>
    void for_each_run(V *group, int64_t begin, int64_t end, Body body) const {
        const int64_t *s = p.map_strides, size = rows(), step = column;
        if (channels_are_innermost()) {
            for (int64_t y = 0; y < p.height; ++y)
                for (int64_t z = 0; z < p.width; ++z) {
                    V *place = at(group, y, z);
                    body((end - begin) * size, begin * s[2] + y * s[4] + z * s[5],
                         [=](int64_t m) { return place + m / size * step + m % size; });
                }
            return;
        }
        const bool whole = s[4] == p.width;  // lines of a map that lie side by side are one run
        for (int64_t n = begin; n < end; ++n)
            for (int k = 0; k < size; ++k)
                for (int64_t y = 0; y < (whole ? 1 : p.height); ++y) {
                    V *line = at(scratch(group, n), y, 0) + k;
                    body(whole ? p.height * p.width : p.width, n * s[2] + k * s[3] + y * s[4],
                         [=](int64_t m) { return line + m * size; });
                }
    }

    void load(int64_t group, int64_t c, int64_t first) {
        const int64_t begin = group * GROUP, end = end_of(group), apart = p.map_strides[0];
        const int lanes = lanes_used(first);
        const Real *source = static_cast<const Real *>(p.maps) + c * p.map_strides[1];
        // Lanes beyond the batch repeat its last sample; their gradients are zeros.
        auto sample = [&](int lane) { return source + std::min(first + lane, p.batch - 1) * apart; };
        if (batch_is_innermost())
            for_each_number(x, begin, end, [&](V *number, int64_t offset) {
                *number = load_lanes<Real>(source + offset + first, lanes);
            });
        else if (width_is_innermost() || channels_are_innermost())
            for_each_run(x, begin, end, [&](int64_t count, int64_t offset, auto place) {
                gather_runs<Real>([&](int lane) { return sample(lane) + offset; }, count, place);
            });
        else
            for_each_number(x, begin, end, [&](V *number, int64_t offset) {
                for (int lane = 0; lane < LANES; ++lane) (*number)[lane] = sample(lane)[offset];
            });
    }

    // Multiplies every capsule by the number it is to be scaled by.
    void apply_scale(V *channel, int64_t n, int64_t first) const {
        if (!p.scale) return;
        const int64_t places = p.height * p.width;
        const Real *scale = static_cast<const Real *>(p.scale) + n * places;
        gather_rows<Real>(
            [&](int lane) { return scale + std::min(first + lane, p.batch - 1) * p.channels * places; }, places, factors, 1);
        for (int64_t place = 0; place < places; ++place)
            for (int k = 0; k < rows(); ++k) channel[place * rows() + k] *= factors[place];
    }

    void store_gradient(int64_t group, int64_t c, int64_t first) {
        const int64_t begin = group * GROUP, end = end_of(group), apart = p.map_strides[0];
        const int lanes = lanes_used(first);
        Real *target = static_cast<Real *>(p.maps_grad) + c * p.map_strides[1];
        auto sample = [&](int lane) { return target + (first + lane) * apart; };
        if (batch_is_innermost())
            for_each_number(by_x, begin, end, [&](V *number, int64_t offset) {
                store_lanes<Real>(target + offset + first, *number, lanes);
            });
        else if (width_is_innermost() || channels_are_innermost())
            for_each_run(by_x, begin, end, [&](int64_t count, int64_t offset, auto place) {
                scatter_runs<Real>(place, count, lanes, [&](int lane) { return sample(lane) + offset; });
            });
        else
            for_each_number(by_x, begin, end, [&](V *number, int64_t offset) {
                for (int lane = 0; lane < lanes; ++lane) sample(lane)[offset] = (*number)[lane];
            });
    }
};

int64_t groups_of(const LocalProblem &p) { return (p.channels + GROUP - 1) / GROUP; }

// Roughly what one block, column and channel costs.
int64_t operations(const LocalProblem &p) {
    return p.rows * p.height * p.width + p.out_height * p.out_width * p.kernel_height * p.kernel_width * p.rows * p.rows;
}

template <class Real, int ROWS>
void local_forward_of(const LocalProblem &p) {
    const int64_t lanes = Lanes<Real>::count, blocks = (p.batch + lanes - 1) / lanes, tasks = groups_of(p) * p.cols;
    const int threads = threads_for(p.threads, blocks * tasks, blocks * p.channels * p.cols * operations(p));
    Arenas<Real> arenas(threads, [&](auto &arena) { Convolution<Real, ROWS>(p, arena); });
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
#endif
    {
        Convolution<Real, ROWS> convolution(p, arenas.mine());
#ifdef _OPENMP
#pragma omp for collapse(2) schedule(dynamic)
#endif
        for (int64_t block = 0; block < blocks; ++block)
            for (int64_t task = 0; task < tasks; ++task)
                convolution.forward(task / p.cols, task % p.cols, block * lanes);
    }
}

template <class Real, int ROWS>
void local_backward_of(const LocalProblem &p) {
    const int64_t lanes = Lanes<Real>::count, blocks = (p.batch + lanes - 1) / lanes;
    const int64_t parts = std::min(LOCAL_PARTS, blocks), size = p.kernel_height * p.kernel_width * p.rows * p.rows;
    std::vector<Real> sums(p.channels * parts * size, Real(0));
    const int64_t groups = groups_of(p);
    const int threads = threads_for(p.threads, groups * parts, blocks * p.channels * p.cols * operations(p));
    Arenas<Real> arenas(threads, [&](auto &arena) { Convolution<Real, ROWS>(p, arena); });
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
#endif
    {
        Convolution<Real, ROWS> convolution(p, arenas.mine());
#ifdef _OPENMP
#pragma omp for collapse(2) schedule(dynamic)
#endif
        for (int64_t group = 0; group < groups; ++group)
            for (int64_t part = 0; part < parts; ++part) {
                convolution.clear_transform_gradients();
                for (int64_t block = part * blocks / parts; block < (part + 1) * blocks / parts; ++block)
                    for (int64_t c = 0; c < p.cols; ++c) convolution.backward(group, c, block * lanes);
                for (int64_t n = group * GROUP; n < convolution.end_of(group); ++n)
                    convolution.add_transform_gradient(n, sums.data() + (n * parts + part) * size);
            }
    }
    Real *target = static_cast<Real *>(p.transform_grad);
    for (int64_t n = 0; n < p.channels; ++n)
        for (int64_t index = 0; index < size; ++index) {
            Real total = 0;
            for (int64_t part = 0; part < parts; ++part) total += sums[(n * parts + part) * size + index];
            target[n * size + index] = total;
        }
}

// Channels mixed at every place by itself. Four channels by two vectors of places are summed in registers.
template <class Real>
class Mix {
    typedef Vector<Real> V;
    static constexpr int64_t LANES = Lanes<Real>::count, RUN = 256 * LANES;

  public:
    explicit Mix(const MixProblem &problem) : p(problem), runs((p.numbers + RUN - 1) / RUN) {}

    void forward() const {
        apply(static_cast<const Real *>(p.mix), p.in_channels, 1, p.out_channels, p.in_channels, p.maps, p.out);
    }

    void backward() const {
        apply(static_cast<const Real *>(p.mix), 1, p.in_channels, p.in_channels, p.out_channels, p.out_grad, p.maps_grad);
        // Summed in one part for each column and run, whatever the number of threads.
        const int64_t parts = p.cols * runs, size = p.out_channels * p.in_channels;
        std::vector<Real> sums(parts * size);
#ifdef _OPENMP
#pragma omp parallel for num_threads(threads_for(p.threads, parts, work()))
#endif
        for (int64_t part = 0; part < parts; ++part)
            correlate(part / runs, part % runs * RUN, sums.data() + part * size);
        Real *target = static_cast<Real *>(p.mix_grad);
        for (int64_t n = 0; n < size; ++n) {
            Real total = 0;
            for (int64_t part = 0; part < parts; ++part) total += sums[part * size + n];
            target[n] = total;
        }
    }

  private:
    const MixProblem &p;
    const int64_t runs;

    int64_t work() const { return p.cols * p.in_channels * p.out_channels * p.numbers / LANES; }

    // y[o] = Σ_i factor[o · to + i · from] x[i], for all columns and numbers.
    void apply(const Real *factor, int64_t to, int64_t from, int64_t O, int64_t I, const void *source, void *target) const {
#ifdef _OPENMP
#pragma omp parallel for num_threads(threads_for(p.threads, p.cols * runs, work()))
#endif
        for (int64_t task = 0; task < p.cols * runs; ++task) {
            const Real *x = static_cast<const Real *>(source) + task / runs * I * p.numbers;
            Real *y = static_cast<Real *>(target) + task / runs * O * p.numbers;
            const int64_t end = std::min((task % runs + 1) * RUN, p.numbers);
            int64_t n = task % runs * RUN;
            for (; n + 2 * LANES <= end; n += 2 * LANES) {
                const int64_t fours = O / 4 * 4;
                for (int64_t o = 0; o < fours; o += 4) tile<4, 2>(factor + o * to, to, from, I, x + n, y + o * p.numbers + n, LANES);
                for (int64_t o = fours; o < O; ++o) tile<1, 2>(factor + o * to, to, from, I, x + n, y + o * p.numbers + n, LANES);
            }
            for (; n < end; n += LANES)
                for (int64_t o = 0; o < O; ++o)
                    tile<1, 1>(
                        factor + o * to, to, from, I, x + n, y + o * p.numbers + n,
                        static_cast<int>(std::min(LANES, end - n)));
        }
    }

    template <int HEIGHT, int WIDTH>
    void tile(const Real *__restrict factor, int64_t to, int64_t from, int64_t I, const Real *__restrict x, Real *__restrict y,
              int used) const {
        V sums[HEIGHT][WIDTH] = {};
        for (int64_t i = 0; i < I; ++i)
            for (int w = 0; w < WIDTH; ++w) {
                const V number = load_lanes<Real>(x + i * p.numbers + w * LANES, used);
                for (int h = 0; h < HEIGHT; ++h) sums[h][w] += number * factor[h * to + i * from];
            }
        for (int h = 0; h < HEIGHT; ++h)
            for (int w = 0; w < WIDTH; ++w) store_lanes<Real>(y + h * p.numbers + w * LANES, sums[h][w], used);
    }

    // sums[o, i] = Σ_n out_grad[o, n] maps[i, n] over one run.
    void correlate(int64_t column, int64_t first, Real *sums) const {
        const Real *y = static_cast<const Real *>(p.out_grad) + column * p.out_channels * p.numbers + first;
        const Real *x = static_cast<const Real *>(p.maps) + column * p.in_channels * p.numbers + first;
        const int64_t count = std::min(RUN, p.numbers - first), fours = p.out_channels / 4 * 4, twos = p.in_channels / 2 * 2;
        for (int64_t o = 0; o < p.out_channels; o += o < fours ? 4 : 1)
            for (int64_t i = 0; i < p.in_channels; i += i < twos ? 2 : 1) {
                if (o < fours && i < twos)
                    product<4, 2>(y + o * p.numbers, x + i * p.numbers, count, sums + o * p.in_channels + i);
                else if (o < fours)
                    product<4, 1>(y + o * p.numbers, x + i * p.numbers, count, sums + o * p.in_channels + i);
                else if (i < twos)
                    product<1, 2>(y + o * p.numbers, x + i * p.numbers, count, sums + o * p.in_channels + i);
                else
                    product<1, 1>(y + o * p.numbers, x + i * p.numbers, count, sums + o * p.in_channels + i);
            }
    }

    template <int HEIGHT, int WIDTH>
    void product(const Real *__restrict y, const Real *__restrict x, int64_t count, Real *sums) const {
        V totals[HEIGHT][WIDTH] = {};
        for (int64_t n = 0; n < count; n += LANES) {
            const int used = static_cast<int>(std::min(LANES, count - n));
            V a[HEIGHT];
            for (int h = 0; h < HEIGHT; ++h) a[h] = load_lanes<Real>(y + h * p.numbers + n, used);
            for (int w = 0; w < WIDTH; ++w) {
                const V b = load_lanes<Real>(x + w * p.numbers + n, used);
                for (int h = 0; h < HEIGHT; ++h) totals[h][w] += a[h] * b;
            }
        }
        for (int h = 0; h < HEIGHT; ++h)
            for (int w = 0; w < WIDTH; ++w) sums[h * p.in_channels + w] = sum_of_lanes<Real>(totals[h][w]);
    }
};

// squash(s) = s n / (1 + n²) with n = ‖s‖. A run of places of one channel at a time, short enough to stay in the cache
// while it is gone through twice.
template <class Real>
class Squash {
    typedef Vector<Real> V;
    static constexpr int64_t LANES = Lanes<Real>::count, RUN = 16 * LANES, LINE = 128;

  public:
    explicit Squash(const SquashProblem &problem) : p(problem), numbers(p.cols * p.rows) {}

    void run(bool backward) {
        if (p.places == 1 && p.rows <= LINE) {
            run_by_lines(backward);
            return;
        }
        const int64_t runs = (p.places + RUN - 1) / RUN, tasks = p.outer * p.channels * runs;
#ifdef _OPENMP
#pragma omp parallel for num_threads(threads_for(p.threads, tasks, p.outer * p.channels * p.places * numbers / LANES))
#endif
        for (int64_t task = 0; task < tasks; ++task) {
            const int64_t outer = task / runs / p.channels, channel = task / runs % p.channels;
            const int64_t first = task % runs * RUN, end = std::min(first + RUN, p.places);
            for (int64_t place = first; place < end; place += LANES) {
                const int64_t offset = ((outer * p.cols * p.channels) + channel) * p.rows * p.places + place;
                const int used = static_cast<int>(std::min(LANES, end - place));
                backward ? back(offset, used) : forth(offset, used);
            }
        }
    }

  private:
    const SquashProblem &p;
    const int64_t numbers;

    // The number n of a pose, n counting its columns and within them its rows.
    int64_t at(int64_t n) const { return (n / p.rows * p.channels * p.rows + n % p.rows) * p.places; }
    static V load(const void *from, int64_t index, int used) {
        return load_lanes<Real>(static_cast<const Real *>(from) + index, used);
    }
    static void store(void *to, int64_t index, V x, int used) { store_lanes<Real>(static_cast<Real *>(to) + index, x, used); }

    void forth(int64_t offset, int used) const {
        V squared{};
        for (int64_t n = 0; n < numbers; ++n) {
            const V x = load(p.poses, offset + at(n), used);
            squared += x * x;
        }
        const V factor = square_root<Real>(squared) / (1 + squared);
        for (int64_t n = 0; n < numbers; ++n)
            store(p.out, offset + at(n), load(p.poses, offset + at(n), used) * factor, used);
    }

    void back(int64_t offset, int used) const {
        const V tiny = splat<Real>(std::numeric_limits<Real>::min());
        V squared{}, along{};
        for (int64_t n = 0; n < numbers; ++n) {
            const V x = load(p.poses, offset + at(n), used);
            squared += x * x;
            along += x * load(p.out_grad, offset + at(n), used);
        }
        const V length = square_root<Real>(squared), below = 1 / (1 + squared), factor = length * below;
        const V inverse = squared > tiny ? 1 / larger(length, tiny) : V{};
        along *= (1 - squared) * below * below * inverse;
        for (int64_t n = 0; n < numbers; ++n) {
            const V x = load(p.poses, offset + at(n), used), gradient = load(p.out_grad, offset + at(n), used);
            store(p.poses_grad, offset + at(n), gradient * factor + x * along, used);
        }
    }

    // Where a problem has one place, the rows of some channels lie side by side: a column of theirs is a line, and what the columns of a pose
    // have in common is found line by line.
    void run_by_lines(bool backward) const {
        const int64_t group = LINE / p.rows, groups = (p.channels + group - 1) / group, tasks = p.outer * groups;
#ifdef _OPENMP
#pragma omp parallel for num_threads(threads_for(p.threads, tasks, p.outer * p.channels * numbers / LANES))
#endif
        for (int64_t task = 0; task < tasks; ++task) {
            const int64_t first = task % groups * group, channels = std::min(group, p.channels - first);
            const int64_t offset = (task / groups * p.cols * p.channels + first) * p.rows;
            backward ? lines_back(offset, channels) : lines_forth(offset, channels);
        }
    }

    // Adds up the rows of each channel; every row gets the sum.
    void add_rows(Real *__restrict line, int64_t channels) const {
        for (int64_t n = 0; n < channels; ++n) {
            Real total = 0;
            for (int64_t r = 0; r < p.rows; ++r) total += line[n * p.rows + r];
            for (int64_t r = 0; r < p.rows; ++r) line[n * p.rows + r] = total;
        }
    }

    void lines_forth(int64_t offset, int64_t channels) const {
        const int64_t length = channels * p.rows, step = p.channels * p.rows;
        const Real *__restrict x = static_cast<const Real *>(p.poses) + offset;
        Real *__restrict out = static_cast<Real *>(p.out) + offset;
        Real squared[LINE] = {};
        for (int64_t c = 0; c < p.cols; ++c)
            for (int64_t j = 0; j < length; ++j) squared[j] += x[c * step + j] * x[c * step + j];
        add_rows(squared, channels);
        for (int64_t j = 0; j < length; ++j) squared[j] = std::sqrt(squared[j]) / (1 + squared[j]);
        for (int64_t c = 0; c < p.cols; ++c)
            for (int64_t j = 0; j < length; ++j) out[c * step + j] = x[c * step + j] * squared[j];
    }

    void lines_back(int64_t offset, int64_t channels) const {
        const int64_t length = channels * p.rows, step = p.channels * p.rows;
        const Real *__restrict x = static_cast<const Real *>(p.poses) + offset;
        const Real *__restrict by_out = static_cast<const Real *>(p.out_grad) + offset;
        Real *__restrict by_x = static_cast<Real *>(p.poses_grad) + offset;
        const Real tiny = std::numeric_limits<Real>::min();
        Real squared[LINE] = {}, along[LINE] = {};
        for (int64_t c = 0; c < p.cols; ++c)
            for (int64_t j = 0; j < length; ++j) {
                squared[j] += x[c * step + j] * x[c * step + j];
                along[j] += x[c * step + j] * by_out[c * step + j];
            }
        add_rows(squared, channels);
        add_rows(along, channels);
        for (int64_t j = 0; j < length; ++j) {
            const Real size = std::sqrt(squared[j]), below = 1 / (1 + squared[j]);
            along[j] *= squared[j] > tiny ? (1 - squared[j]) * below * below / size : Real(0);
            squared[j] = size * below;
        }
        for (int64_t c = 0; c < p.cols; ++c)
            for (int64_t j = 0; j < length; ++j)
                by_x[c * step + j] = by_out[c * step + j] * squared[j] + x[c * step + j] * along[j];
    }
};

}  // namespace

int64_t mix_forward(const MixProblem &p) {
    p.is_double ? Mix<double>(p).forward() : Mix<float>(p).forward();
    return 0;
}

int64_t mix_backward(const MixProblem &p) {
    p.is_double ? Mix<double>(p).backward() : Mix<float>(p).backward();
    return 0;
}

int64_t squash_forward(const SquashProblem &p) {
    p.is_double ? Squash<double>(p).run(false) : Squash<float>(p).run(false);
    return 0;
}

int64_t squash_backward(const SquashProblem &p) {
    p.is_double ? Squash<double>(p).run(true) : Squash<float>(p).run(true);
    return 0;
}

int64_t local_forward(const LocalProblem &p) {
    if (p.is_double)
        p.rows == 4 ? local_forward_of<double, 4>(p) : local_forward_of<double, 0>(p);
    else
        p.rows == 4 ? local_forward_of<float, 4>(p) : local_forward_of<float, 0>(p);
    return 0;
}

int64_t local_backward(const LocalProblem &p) {
    if (p.is_double)
        p.rows == 4 ? local_backward_of<double, 4>(p) : local_backward_of<double, 0>(p);
    else
        p.rows == 4 ? local_backward_of<float, 4>(p) : local_backward_of<float, 0>(p);
    return 0;
}

}  // namespace VARIANT
