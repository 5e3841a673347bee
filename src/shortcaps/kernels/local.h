// The arguments of the depth-wise capsule convolution, of the point-wise mix and of squash, shared with the Python side (kernels/library.py) field by field.
#pragma once

#include <cstdint>

extern int64_t shortcaps_work_per_thread;

// Maps are (batch, cols, channels, rows, height, width) with any strides, and so is their gradient, with the same strides.
// What comes out, and its gradient, lie with the batch innermost: (cols, channels, rows, out_height, out_width, batch).
struct LocalProblem {
    int64_t threads, is_double;
    int64_t batch, cols, channels, rows, height, width;
    int64_t kernel_height, kernel_width, stride, out_height, out_width;
    int64_t map_strides[6];

    const void *maps;
    const void *transform;  // (channels, kernel_height, kernel_width, rows, rows)
    const void *scale;      // (batch, channels, height, width): each capsule is scaled by its number first. Null: by none
    void *out;

    const void *out_grad;
    void *maps_grad;
    void *transform_grad;
};

// out[c, o, n] = Σ_i mix[o, i] maps[c, i, n], where n counts rows and places.
struct MixProblem {
    int64_t threads, is_double;
    int64_t cols, in_channels, out_channels, numbers;

    const void *mix;   // (out_channels, in_channels)
    const void *maps;  // (cols, in_channels, numbers)
    void *out;         // (cols, out_channels, numbers)

    const void *out_grad;
    void *maps_grad;
    void *mix_grad;
};

// Poses lie as (outer, cols, channels, rows, places): every pose, over cols and rows, is squashed.
struct SquashProblem {
    int64_t threads, is_double;
    int64_t outer, cols, channels, rows, places;

    const void *poses;
    void *out;

    const void *out_grad;
    void *poses_grad;
};
