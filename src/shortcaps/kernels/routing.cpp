// The routings, fused: for a block of samples (one per vector lane) all iterations run with the votes in registers and
// L1, computed anew whenever they are needed. What the backward pass needs of the forward pass, beside its inputs, are the
// capsules after each turn and a few sums. Nothing of the size of the votes exists anywhere.
//
// This file is compiled once for each instruction set; `VARIANT` names the namespace.

#include "routing.h"

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
#include "block.h"
#include "agreement.h"
#include "em.h"
#include "fuzzy.h"

// Gradients of shared parameters are summed in this many parts, whatever the number of threads, so that it does not
// change the result.
constexpr int64_t PARTS = 16;

// Roughly what one block costs.
static inline int64_t operations(const RoutingProblem &p) {
    return p.iterations * p.groups * p.members * p.outputs * p.rows * p.rows * p.cols;
}

template <class Routing>
int64_t state_numbers(const RoutingProblem &p) {
    Arena<typename Routing::Real> none;
    return Routing(p, none, false).state_numbers();
}

template <class Routing>
void forward_blocks(const RoutingProblem &p) {
    const int64_t lanes = Routing::LANES;
    const int64_t blocks = Routing::runs_across_inputs(p) ? p.batch : (p.batch + lanes - 1) / lanes;
    const int threads = threads_for(p.threads, blocks, blocks * operations(p));
    Arenas<typename Routing::Real> arenas(threads, [&](auto &arena) { Routing(p, arena, false); });
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
#endif
    {
        Routing routing(p, arenas.mine(), false);
#ifdef _OPENMP
#pragma omp for schedule(dynamic)
#endif
        for (int64_t n = 0; n < blocks; ++n) {
            routing.load(n);
            routing.forward();
            if (p.readout) routing.read_out();
            routing.store();
            if (p.keep_state) routing.keep_state();
        }
    }
}

template <class Routing>
void backward_blocks(const RoutingProblem &p) {
    typedef typename Routing::Real Real;
    const int64_t lanes = Routing::LANES, blocks = (p.batch + lanes - 1) / lanes;
    const int64_t parts = std::min(PARTS, blocks), transforms = p.groups * p.outputs * p.rows * p.rows;
    const int64_t thresholds = 2 * p.outputs, readout = p.readout ? p.outputs * p.rows * p.cols : 0;
    const int64_t shared = transforms + thresholds + readout + (p.readout ? p.outputs : 0);
    std::vector<Real> sums(parts * shared, Real(0));
    const int threads = threads_for(p.threads, parts, blocks * operations(p));
    Arenas<Real> arenas(threads, [&](auto &arena) { Routing(p, arena, true); });
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
#endif
    {
        Routing routing(p, arenas.mine(), true);
#ifdef _OPENMP
#pragma omp for schedule(dynamic)
#endif
        for (int64_t part = 0; part < parts; ++part) {
            Real *sum = sums.data() + part * shared;
            for (int64_t n = part * blocks / parts; n < (part + 1) * blocks / parts; ++n) {
                routing.load(n);
                routing.load_state();
                routing.resume();
                routing.load_gradients(sum, sum + transforms, sum + transforms + p.outputs);
                if (p.readout) {
                    Real *by_readout = sum + transforms + thresholds;
                    routing.backward_of_readout(by_readout, by_readout + readout);
                }
                routing.backward();
                routing.store_gradients();
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
    gather(p.readout_grad, transforms + thresholds, readout);
    gather(p.readout_bias_grad, transforms + thresholds + readout, p.readout ? p.outputs : 0);
}

// Calls `action` with a null pointer to the class that solves this problem. There is no default, and the compiler is told
// to take that seriously (-Werror=switch): a kind without a kernel does not compile.
template <class Real, int ROWS, int COLS, class Action>
int64_t with_kind(const RoutingProblem &p, Action action) {
    switch (static_cast<RoutingKind>(p.kind)) {
        case ATTENTION:
        case DYNAMIC: return action(static_cast<Agreement<Real, ROWS, COLS> *>(nullptr));
        case FUZZY: return action(static_cast<FuzzyMeans<Real, ROWS, COLS> *>(nullptr));
        case EM: return action(static_cast<ExpectationMaximisation<Real, ROWS, COLS> *>(nullptr));
        case ROUTING_KINDS: break;  // how many there are, none of them
    }
    return UNKNOWN_KIND;
}

template <class Action>
int64_t with_routing(const RoutingProblem &p, Action action) {
    const bool usual = p.rows == 4 && p.cols == 4;
    if (p.is_double) return usual ? with_kind<double, 4, 4>(p, action) : with_kind<double, 0, 0>(p, action);
    return usual ? with_kind<float, 4, 4>(p, action) : with_kind<float, 0, 0>(p, action);
}

int64_t forward(const RoutingProblem &p) {
    return with_routing(p, [&](auto *kind) { return forward_blocks<std::remove_pointer_t<decltype(kind)>>(p), 0; });
}

int64_t backward(const RoutingProblem &p) {
    return with_routing(p, [&](auto *kind) { return backward_blocks<std::remove_pointer_t<decltype(kind)>>(p), 0; });
}

int64_t state_size(const RoutingProblem &p) {
    return with_routing(p, [&](auto *kind) { return state_numbers<std::remove_pointer_t<decltype(kind)>>(p); });
}

}  // namespace VARIANT
