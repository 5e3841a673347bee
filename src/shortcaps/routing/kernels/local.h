// The arguments of the depth-wise capsule convolution, shared with the Python side (kernels/library.py) field by field.
#pragma once

#include <cstdint>

// Maps are (batch, cols, channels, rows, height, width) with any strides, and so is their gradient, with the same strides.
// What comes out, and its gradient, lie with the batch innermost: (cols, channels, rows, out_height, out_width, batch).
struct LocalProblem {
    int64_t threads, is_double;
    int64_t batch, cols, channels, rows, height, width;
    int64_t kernel_height, kernel_width, stride, out_height, out_width;
    int64_t map_strides[6];

    const void *maps;
    const void *transform;  // (channels, kernel_height, kernel_width, rows, rows)
    void *out;

    const void *out_grad;
    void *maps_grad;
    void *transform_grad;
};
