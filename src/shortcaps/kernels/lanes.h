// Vectors of samples. Every number of the routing kernels is a vector with one sample (or one output position) per lane,
// so that all arithmetic is vertical; how many lanes there are depends on the instruction set this is compiled for.
// Included inside a namespace, once for each instruction set: the standard headers it needs are included before it.
#pragma once

#if defined(__AVX512F__)
#define SHORTCAPS_VECTOR_BYTES 64
#elif defined(__AVX__)
#define SHORTCAPS_VECTOR_BYTES 32
#else
#define SHORTCAPS_VECTOR_BYTES 16
#endif

template <class Real>
struct Lanes;

template <>
struct Lanes<float> {
    static constexpr int count = SHORTCAPS_VECTOR_BYTES / 4;
    typedef float Vector __attribute__((vector_size(SHORTCAPS_VECTOR_BYTES)));
    typedef int32_t Integers __attribute__((vector_size(SHORTCAPS_VECTOR_BYTES)));
};

template <>
struct Lanes<double> {
    static constexpr int count = SHORTCAPS_VECTOR_BYTES / 8;
    typedef double Vector __attribute__((vector_size(SHORTCAPS_VECTOR_BYTES)));
    typedef int64_t Integers __attribute__((vector_size(SHORTCAPS_VECTOR_BYTES)));
};

template <class Real>
using Vector = typename Lanes<Real>::Vector;

template <class Real>
static inline Vector<Real> splat(Real x) {
    return Vector<Real>{} + x;
}

// Where `a` is not a number, neither is the result: a fault must not be clamped away.
template <class V>
static inline V larger(V a, V b) {
    return a < b ? b : a;
}

template <class V>
static inline V smaller(V a, V b) {
    return a > b ? b : a;
}

// The first `used` lanes from or to memory. A whole vector, nearly always the case, is one instruction.
template <class Real>
static inline Vector<Real> load_lanes(const Real *from, int used) {
    Vector<Real> x{};
    if (used == Lanes<Real>::count)
        std::memcpy(&x, from, sizeof x);
    else
        for (int lane = 0; lane < used; ++lane) x[lane] = from[lane];
    return x;
}

template <class Real>
static inline void store_lanes(Real *to, Vector<Real> x, int used) {
    if (used == Lanes<Real>::count)
        std::memcpy(to, &x, sizeof x);
    else
        for (int lane = 0; lane < used; ++lane) to[lane] = x[lane];
}

template <class Real, class Function>
static inline Vector<Real> each_lane(Vector<Real> x, Function f) {
    Vector<Real> y{};
    for (int lane = 0; lane < Lanes<Real>::count; ++lane) y[lane] = f(x[lane]);
    return y;
}

template <class Real>
static inline Real sum_of_lanes(Vector<Real> x) {
    Real parts[Lanes<Real>::count];
    std::memcpy(parts, &x, sizeof x);
    for (int half = Lanes<Real>::count / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; ++lane) parts[lane] += parts[lane + half];
    return parts[0];
}

// Two rows of a square of numbers, with their off-diagonal blocks of `STEP` columns exchanged: which of the two is wanted.
template <int STEP, bool SECOND, class Real>
static inline Vector<Real> exchanged(Vector<Real> a, Vector<Real> b) {
    constexpr int lanes = Lanes<Real>::count;
#if defined(__clang__)
    Vector<Real> result{};
    for (int j = 0; j < lanes; ++j) result[j] = (j & STEP) ? b[SECOND ? j : j - STEP] : a[SECOND ? j + STEP : j];
    return result;
#else
    typename Lanes<Real>::Integers from{};
    for (int j = 0; j < lanes; ++j) from[j] = (j & STEP) ? lanes + (SECOND ? j : j - STEP) : (SECOND ? j + STEP : j);
    return __builtin_shuffle(a, b, from);
#endif
}

template <int STEP, class Real>
static inline void exchange_blocks(Vector<Real> *rows) {
    for (int i = 0; i < Lanes<Real>::count; ++i)
        if (!(i & STEP)) {
            const Vector<Real> a = rows[i], b = rows[i + STEP];
            rows[i] = exchanged<STEP, false, Real>(a, b);
            rows[i + STEP] = exchanged<STEP, true, Real>(a, b);
        }
}

// A square of numbers, one row for each lane, turned into columns, in place.
template <class Real>
static inline void transpose(Vector<Real> *rows) {
    constexpr int lanes = Lanes<Real>::count;
    exchange_blocks<1, Real>(rows);
    if constexpr (lanes > 2) exchange_blocks<2, Real>(rows);
    if constexpr (lanes > 4) exchange_blocks<4, Real>(rows);
    if constexpr (lanes > 8) exchange_blocks<8, Real>(rows);
}

// target[n] += the sum of the lanes of x[n], for `count` vectors.
template <class Real>
static inline void add_sums_of_lanes(const Vector<Real> *x, int64_t count, Real *target) {
    constexpr int lanes = Lanes<Real>::count;
    const int64_t whole = count / lanes * lanes;
    for (int64_t n = 0; n < whole; n += lanes) {
        Vector<Real> square[lanes], sums;
        for (int j = 0; j < lanes; ++j) square[j] = x[n + j];
        transpose<Real>(square);
        for (int half = lanes / 2; half > 0; half /= 2)
            for (int j = 0; j < half; ++j) square[j] += square[j + half];
        std::memcpy(&sums, target + n, sizeof sums);
        sums += square[0];
        std::memcpy(target + n, &sums, sizeof sums);
    }
    for (int64_t n = whole; n < count; ++n) target[n] += sum_of_lanes<Real>(x[n]);
}

// `count` numbers side by side for each of LANES rows, turned into vectors: place(n)[lane] = row(lane)[n].
template <class Real, class Row, class Place>
static inline void gather_runs(Row row, int64_t count, Place place) {
    constexpr int lanes = Lanes<Real>::count;
    const int64_t whole = count / lanes * lanes;
    for (int64_t n = 0; n < whole; n += lanes) {
        Vector<Real> square[lanes];
        for (int lane = 0; lane < lanes; ++lane) std::memcpy(&square[lane], row(lane) + n, sizeof square[lane]);
        transpose<Real>(square);
        for (int j = 0; j < lanes; ++j) *place(n + j) = square[j];
    }
    for (int64_t n = whole; n < count; ++n)
        for (int lane = 0; lane < lanes; ++lane) (*place(n))[lane] = row(lane)[n];
}

// The way back, for the first `used` lanes.
template <class Real, class Row, class Place>
static inline void scatter_runs(Place place, int64_t count, int used, Row row) {
    constexpr int lanes = Lanes<Real>::count;
    const int64_t whole = count / lanes * lanes;
    for (int64_t n = 0; n < whole; n += lanes) {
        Vector<Real> square[lanes];
        for (int j = 0; j < lanes; ++j) square[j] = *place(n + j);
        transpose<Real>(square);
        for (int lane = 0; lane < used; ++lane) std::memcpy(row(lane) + n, &square[lane], sizeof square[lane]);
    }
    for (int64_t n = whole; n < count; ++n)
        for (int lane = 0; lane < used; ++lane) row(lane)[n] = (*place(n))[lane];
}

// The same where the vectors lie `step` apart.
template <class Real, class Row>
static inline void gather_rows(Row row, int64_t count, Vector<Real> *target, int64_t step) {
    gather_runs<Real>(row, count, [=](int64_t n) { return target + n * step; });
}

template <class Real, class Row>
static inline void scatter_rows(const Vector<Real> *source, int64_t step, int64_t count, int used, Row row) {
    scatter_runs<Real>([=](int64_t n) { return source + n * step; }, count, used, row);
}

// exp and log in float32: range reduction and the minimax polynomials of the Cephes library, below 2 units in the last
// place over the range used here. In float64 the C library answers, lane by lane: that path is for gradient checks.

static inline Vector<float> exponential(Vector<float> x) {
    typedef Lanes<float>::Integers Integers;
    x = smaller(larger(x, splat(-87.3f)), splat(88.3f));
    const float shift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
    Vector<float> n = (x * 1.44269504088896341f + shift) - shift;
    x = x - n * 0.693359375f;
    x = x + n * 2.12194440e-4f;
    Vector<float> y = splat(1.9875691500e-4f);
    y = y * x + 1.3981999507e-3f;
    y = y * x + 8.3334519073e-3f;
    y = y * x + 4.1665795894e-2f;
    y = y * x + 1.6666665459e-1f;
    y = y * x + 5.0000001201e-1f;
    y = y * (x * x) + x + 1.0f;
    Integers power = (__builtin_convertvector(n, Integers) + 127) << 23;
    Vector<float> scale;
    std::memcpy(&scale, &power, sizeof scale);
    return y * scale;
}

static inline Vector<float> logarithm(Vector<float> x) {
    typedef Lanes<float>::Integers Integers;
    x = larger(x, splat(std::numeric_limits<float>::min()));
    Integers bits;
    std::memcpy(&bits, &x, sizeof bits);
    Vector<float> e = __builtin_convertvector((bits >> 23) - 126, Vector<float>);
    bits = (bits & 0x007fffff) | 0x3f000000;
    Vector<float> m;
    std::memcpy(&m, &bits, sizeof m);
    auto low = m < 0.707106781186547524f;
    e = low ? e - 1.0f : e;
    m = (low ? m + m : m) - 1.0f;
    Vector<float> z = m * m;
    Vector<float> y = splat(7.0376836292e-2f);
    y = y * m - 1.1514610310e-1f;
    y = y * m + 1.1676998740e-1f;
    y = y * m - 1.2420140846e-1f;
    y = y * m + 1.4249322787e-1f;
    y = y * m - 1.6668057665e-1f;
    y = y * m + 2.0000714765e-1f;
    y = y * m - 2.4999993993e-1f;
    y = y * m + 3.3333331174e-1f;
    y = y * m * z;
    y = y - e * 2.12194440e-4f;
    y = y - z * 0.5f;
    // Infinity and what is not a number have no mantissa to take the logarithm of: they are their own.
    return x <= std::numeric_limits<float>::max() ? m + y + e * 0.693359375f : x;
}

static inline Vector<double> exponential(Vector<double> x) {
    return each_lane<double>(x, [](double value) { return std::exp(value); });
}

static inline Vector<double> logarithm(Vector<double> x) {
    return each_lane<double>(larger(x, splat(std::numeric_limits<double>::min())), [](double value) { return std::log(value); });
}

template <class Real>
static inline Vector<Real> square_root(Vector<Real> x) {
    return each_lane<Real>(x, [](Real value) { return std::sqrt(value); });
}

template <class Real>
static inline Vector<Real> magnitude(Vector<Real> x) {
    return x < 0 ? -x : x;
}

template <class Real>
static inline Vector<Real> sigmoid(Vector<Real> x) {
    const Vector<Real> small = exponential(-magnitude<Real>(x));
    return (x < 0 ? small : splat<Real>(1)) / (1 + small);
}

// Its absolute error counts, as it is added to other logarithms: ln(1 + small) needs no more care.
template <class Real>
static inline Vector<Real> log_sigmoid(Vector<Real> x) {
    return (x < 0 ? x : Vector<Real>{}) - logarithm(1 + exponential(-magnitude<Real>(x)));
}

// How many threads a piece of work of so many vector operations is worth.
static inline int threads_for(int64_t threads, int64_t tasks, int64_t operations) {
    const int64_t worth = operations / std::max<int64_t>(shortcaps_work_per_thread, 1);
    return static_cast<int>(std::max<int64_t>(1, std::min({threads, tasks, worth})));
}
