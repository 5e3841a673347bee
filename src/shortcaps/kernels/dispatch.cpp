// The C interface: picks the widest instruction set that this machine has.

#include "local.h"
#include "routing.h"

#include <initializer_list>
#include <new>
#include <stdexcept>

#define DECLARE(VARIANT)                            \
    namespace VARIANT {                             \
    int64_t forward(const RoutingProblem &);        \
    int64_t backward(const RoutingProblem &);       \
    int64_t state_size(const RoutingProblem &);     \
    int64_t local_forward(const LocalProblem &);    \
    int64_t local_backward(const LocalProblem &);   \
    int64_t mix_forward(const MixProblem &);        \
    int64_t mix_backward(const MixProblem &);       \
    int64_t squash_forward(const SquashProblem &);  \
    int64_t squash_backward(const SquashProblem &); \
    }

DECLARE(generic)
#ifdef SHORTCAPS_X86
DECLARE(avx2)
DECLARE(avx512)
#endif

// Vector operations that make it worth while to wake another thread, which costs about as much.
int64_t shortcaps_work_per_thread = 50000;

// How many vectors a thread keeps of what has a number for each input and output: 16 MB of the widest.
int64_t shortcaps_vectors_at_once = 1 << 18;

enum Variant { GENERIC, AVX2, AVX512 };

static Variant widest() {
#ifdef SHORTCAPS_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) return AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return AVX2;
#endif
    return GENERIC;
}

static Variant chosen = widest();

extern "C" {

const char *shortcaps_variant() {
    return chosen == AVX512 ? "AVX-512" : chosen == AVX2 ? "AVX2" : "baseline instructions";
}

// For tests: uses a narrower instruction set than the machine has. Returns 0 if it has none of that name.
int shortcaps_limit_variant(int variant) {
    if (variant > widest()) return 0;
    chosen = static_cast<Variant>(variant);
    return 1;
}

// For tests: small problems are divided among threads as well.
void shortcaps_set_work_per_thread(int64_t operations) { shortcaps_work_per_thread = operations; }

// For tests: small problems are solved in pieces as well. Returns how many vectors it was before.
int64_t shortcaps_set_vectors_at_once(int64_t vectors) {
    const int64_t before = shortcaps_vectors_at_once;
    shortcaps_vectors_at_once = vectors;
    return before;
}

// For the Python side to notice a library that was built from another version of the source, and to see that both sides
// mean the same by a problem.
#ifndef SHORTCAPS_SOURCE
#define SHORTCAPS_SOURCE ""
#endif
const char *shortcaps_source() { return SHORTCAPS_SOURCE; }

int64_t shortcaps_problem_sizes() {
    int64_t sizes = 0;
    for (int64_t size : {sizeof(RoutingProblem), sizeof(LocalProblem), sizeof(MixProblem), sizeof(SquashProblem)})
        sizes = sizes * 1000 + size;
    return sizes;
}

// For tests: every number below this is a kind of routing.
int64_t shortcaps_routing_kinds() { return ROUTING_KINDS; }

#ifdef SHORTCAPS_X86
#define SOLVE(FUNCTION)                                \
    if (chosen == AVX512) return avx512::FUNCTION(*p); \
    if (chosen == AVX2) return avx2::FUNCTION(*p);     \
    return generic::FUNCTION(*p);
#else
#define SOLVE(FUNCTION) return generic::FUNCTION(*p);
#endif

// The caller does not know C++, and an exception must not reach it. A vector longer than any memory says so by length_error.
#define DISPATCH(FUNCTION)                \
    try {                                 \
        SOLVE(FUNCTION)                   \
    } catch (const std::bad_alloc &) {    \
        return OUT_OF_MEMORY;             \
    } catch (const std::length_error &) { \
        return OUT_OF_MEMORY;             \
    }

// All of them return 0, or what went wrong (routing.h).
int64_t shortcaps_route_forward(const RoutingProblem *p) { DISPATCH(forward) }
int64_t shortcaps_route_backward(const RoutingProblem *p) { DISPATCH(backward) }
// How many numbers of each sample a forward pass keeps for the backward pass.
int64_t shortcaps_route_state_size(const RoutingProblem *p) { return generic::state_size(*p); }

int64_t shortcaps_local_forward(const LocalProblem *p) { DISPATCH(local_forward) }
int64_t shortcaps_local_backward(const LocalProblem *p) { DISPATCH(local_backward) }
int64_t shortcaps_mix_forward(const MixProblem *p) { DISPATCH(mix_forward) }
int64_t shortcaps_mix_backward(const MixProblem *p) { DISPATCH(mix_backward) }
int64_t shortcaps_squash_forward(const SquashProblem *p) { DISPATCH(squash_forward) }
int64_t shortcaps_squash_backward(const SquashProblem *p) { DISPATCH(squash_backward) }
}
