// The arguments of the routing kernels, shared with the Python side (kernels/library.py) field by field.
#pragma once

#include <cstdint>

extern int64_t shortcaps_work_per_thread;
extern int64_t shortcaps_vectors_at_once;

// A routing's class names its number in its NativeSpec (kernels/spec.py). The last entry counts them.
enum RoutingKind : int64_t { ATTENTION, DYNAMIC, FUZZY, EM, ROUTING_KINDS };

// What the entry points return: 0 where all went well. Negative, so that no size of a state is taken for it.
constexpr int64_t UNKNOWN_KIND = -1, OUT_OF_MEMORY = -2;

// Poses are (batch, groups, members, rows, cols) with any strides; everything else is contiguous. Null: not given, or not
// wanted. A gradient has the layout of what it is the gradient of.
struct RoutingProblem {
    int64_t kind, iterations, activate, keep_state, threads, is_double;
    int64_t rectified;  // whether poses are read through a ReLU, and their gradients written through it
    int64_t batch, groups, members, outputs, rows, cols;
    int64_t pose_strides[5];
    double softness, sharpness, floor;  // softness: the fuzziness of fuzzy routing, the temperature of EM

    const void *poses;        // v = transforms[group, output] · pose
    const void *transforms;   // (groups, outputs, rows, rows)
    const void *start;        // (batch, outputs, rows, cols)
    const void *activations;  // (batch, groups · members)
    const void *beta;         // (outputs): fuzzy's β, EM's β_activate
    const void *beta_use;     // (outputs): EM's β_use
    const void *readout;      // (outputs, rows, cols), with `readout_bias` (outputs): activations become sigmoid(logit(a) + ⟨w, g⟩ + b)
    const void *readout_bias;

    void *pose;        // (batch, outputs, rows, cols)
    void *activation;  // (batch, outputs)
    void *state;       // (batch rounded up to 16, shortcaps_route_state_size): written where keep_state is set, read backward

    const void *pose_grad;        // of the loss by `pose`
    const void *activation_grad;  // of the loss by `activation`
    void *poses_grad;
    void *transforms_grad;
    void *start_grad;
    void *activations_grad;
    void *beta_grad;
    void *beta_use_grad;
    void *readout_grad;
    void *readout_bias_grad;
};
