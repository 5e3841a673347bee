// The depth-wise capsule convolution, Eq. (3), for a block of samples, one column of the poses and one channel at a time:
// a plain convolution whose every multiply–add is a vector of samples and a broadcast number.
//
// This file is compiled once for each instruction set; `VARIANT` names the namespace.

#include "local.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace VARIANT {

#include "lanes.h"

namespace {

// The gradient of a channel's transformations is summed in this many parts, whatever the number of threads.
constexpr int64_t LOCAL_PARTS = 4;

template <class Real, int ROWS>
class Convolution {
    typedef Vector<Real> V;
    static constexpr int LANES = Lanes<Real>::count;

  public:
    explicit Convolution(const LocalProblem &problem)
        : p(problem), taps(p.kernel_height * p.kernel_width), column(p.rows * p.height * p.width) {
        storage.resize((2 * column + taps * p.rows * p.rows + p.rows + 1) * sizeof(V) + 64);
        auto start = (reinterpret_cast<uintptr_t>(storage.data()) + 63) / 64 * 64;
        x = reinterpret_cast<V *>(start);
        by_x = x + column;
        by_transform = by_x + column;
        values = by_transform + taps * p.rows * p.rows;
    }

    void forward(int64_t n, int64_t c, int64_t first) {
        load(n, c, first);
        const int lanes = lanes_used(first);
        for (int64_t i = 0; i < p.out_height; ++i)
            for (int64_t j = 0; j < p.out_width; ++j) {
                for (int r = 0; r < rows(); ++r) values[r] = V{};
                for (int64_t w = 0; w < p.kernel_height; ++w)
                    for (int64_t h = 0; h < p.kernel_width; ++h) {
                        const Real *T = transform(n, w, h);
                        const V *place = at(x, i * p.stride + w, j * p.stride + h);
                        for (int k = 0; k < rows(); ++k)
                            for (int r = 0; r < rows(); ++r) values[r] += place[k] * T[r * rows() + k];
                    }
                for (int r = 0; r < rows(); ++r)
                    std::memcpy(out(p.out, n, c, r, i, j) + first, &values[r], lanes * sizeof(Real));
            }
    }

    void clear_transform_gradient() { std::memset(static_cast<void *>(by_transform), 0, taps * rows() * rows() * sizeof(V)); }

    void backward(int64_t n, int64_t c, int64_t first) {
        load(n, c, first);
        std::memset(static_cast<void *>(by_x), 0, column * sizeof(V));
        const int lanes = lanes_used(first);
        for (int64_t i = 0; i < p.out_height; ++i)
            for (int64_t j = 0; j < p.out_width; ++j) {
                for (int r = 0; r < rows(); ++r) {
                    values[r] = V{};
                    std::memcpy(&values[r], out(p.out_grad, n, c, r, i, j) + first, lanes * sizeof(Real));
                }
                V *gradient = by_transform;
                for (int64_t w = 0; w < p.kernel_height; ++w)
                    for (int64_t h = 0; h < p.kernel_width; ++h) {
                        const Real *T = transform(n, w, h);
                        const V *place = at(x, i * p.stride + w, j * p.stride + h);
                        V *by_place = at(by_x, i * p.stride + w, j * p.stride + h);
                        for (int k = 0; k < rows(); ++k) {
                            V sum = by_place[k];
                            for (int r = 0; r < rows(); ++r) sum += values[r] * T[r * rows() + k];
                            by_place[k] = sum;
                        }
                        for (int r = 0; r < rows(); ++r)
                            for (int k = 0; k < rows(); ++k) *gradient++ += values[r] * place[k];
                    }
            }
        store_gradient(n, c, first);
    }

    void add_transform_gradient(Real *target) const {
        for (int64_t n = 0; n < taps * rows() * rows(); ++n) target[n] += sum_of_lanes<Real>(by_transform[n]);
    }

  private:
    const LocalProblem &p;
    const int64_t taps, column;
    std::vector<char> storage;
    V *x, *by_x, *by_transform, *values;

    int rows() const { return ROWS ? ROWS : static_cast<int>(p.rows); }
    int lanes_used(int64_t first) const { return static_cast<int>(std::min<int64_t>(LANES, p.batch - first)); }
    // Scratch is (height, width, rows), so that a tap reads `rows` vectors side by side.
    V *at(V *scratch, int64_t y, int64_t x_) const { return scratch + (y * p.width + x_) * rows(); }
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

    void load(int64_t n, int64_t c, int64_t first) {
        const int64_t *s = p.map_strides;
        const int lanes = lanes_used(first);
        const Real *source = static_cast<const Real *>(p.maps) + c * s[1] + n * s[2];
        if (lanes < LANES) std::memset(static_cast<void *>(x), 0, column * sizeof(V));
        if (s[0] == 1) {
            for (int64_t y = 0; y < p.height; ++y)
                for (int64_t z = 0; z < p.width; ++z)
                    for (int k = 0; k < rows(); ++k)
                        std::memcpy(at(x, y, z) + k, source + k * s[3] + y * s[4] + z * s[5] + first, lanes * sizeof(Real));
            return;
        }
        Real *numbers = reinterpret_cast<Real *>(x);
        for (int lane = 0; lane < lanes; ++lane)
            for (int k = 0; k < rows(); ++k)
                for (int64_t y = 0; y < p.height; ++y) {
                    const Real *line = source + (first + lane) * s[0] + k * s[3] + y * s[4];
                    Real *target = numbers + (y * p.width * rows() + k) * LANES + lane;
                    for (int64_t z = 0; z < p.width; ++z) target[z * rows() * LANES] = line[z * s[5]];
                }
    }

    void store_gradient(int64_t n, int64_t c, int64_t first) {
        const int64_t *s = p.map_strides;
        const int lanes = lanes_used(first);
        Real *target = static_cast<Real *>(p.maps_grad) + c * s[1] + n * s[2];
        if (s[0] == 1) {
            for (int64_t y = 0; y < p.height; ++y)
                for (int64_t z = 0; z < p.width; ++z)
                    for (int k = 0; k < rows(); ++k)
                        std::memcpy(target + k * s[3] + y * s[4] + z * s[5] + first, at(by_x, y, z) + k, lanes * sizeof(Real));
            return;
        }
        const Real *numbers = reinterpret_cast<const Real *>(by_x);
        for (int lane = 0; lane < lanes; ++lane)
            for (int k = 0; k < rows(); ++k)
                for (int64_t y = 0; y < p.height; ++y) {
                    Real *line = target + (first + lane) * s[0] + k * s[3] + y * s[4];
                    const Real *source = numbers + (y * p.width * rows() + k) * LANES + lane;
                    for (int64_t z = 0; z < p.width; ++z) line[z * s[5]] = source[z * rows() * LANES];
                }
    }
};

template <class Real, int ROWS>
void local_forward_of(const LocalProblem &p) {
    const int64_t lanes = Lanes<Real>::count, blocks = (p.batch + lanes - 1) / lanes;
#ifdef _OPENMP
#pragma omp parallel num_threads(static_cast<int>(p.threads))
#endif
    {
        Convolution<Real, ROWS> convolution(p);
#ifdef _OPENMP
#pragma omp for collapse(2) schedule(dynamic, 4)
#endif
        for (int64_t block = 0; block < blocks; ++block)
            for (int64_t task = 0; task < p.channels * p.cols; ++task)
                convolution.forward(task / p.cols, task % p.cols, block * lanes);
    }
}

template <class Real, int ROWS>
void local_backward_of(const LocalProblem &p) {
    const int64_t lanes = Lanes<Real>::count, blocks = (p.batch + lanes - 1) / lanes;
    const int64_t parts = std::min(LOCAL_PARTS, blocks), size = p.kernel_height * p.kernel_width * p.rows * p.rows;
    std::vector<Real> sums(p.channels * parts * size, Real(0));
#ifdef _OPENMP
#pragma omp parallel num_threads(static_cast<int>(p.threads))
#endif
    {
        Convolution<Real, ROWS> convolution(p);
#ifdef _OPENMP
#pragma omp for collapse(2) schedule(dynamic)
#endif
        for (int64_t n = 0; n < p.channels; ++n)
            for (int64_t part = 0; part < parts; ++part) {
                convolution.clear_transform_gradient();
                for (int64_t block = part * blocks / parts; block < (part + 1) * blocks / parts; ++block)
                    for (int64_t c = 0; c < p.cols; ++c) convolution.backward(n, c, block * lanes);
                convolution.add_transform_gradient(sums.data() + (n * parts + part) * size);
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

}  // namespace

void local_forward(const LocalProblem &p) {
    if (p.is_double) return p.rows == 4 ? local_forward_of<double, 4>(p) : local_forward_of<double, 0>(p);
    return p.rows == 4 ? local_forward_of<float, 4>(p) : local_forward_of<float, 0>(p);
}

void local_backward(const LocalProblem &p) {
    if (p.is_double) return p.rows == 4 ? local_backward_of<double, 4>(p) : local_backward_of<double, 0>(p);
    return p.rows == 4 ? local_backward_of<float, 4>(p) : local_backward_of<float, 0>(p);
}

}  // namespace VARIANT
