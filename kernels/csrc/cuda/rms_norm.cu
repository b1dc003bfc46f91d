// RMSNorm with residual in CUDA C++, for comparison with the Triton kernel (triton_ops/rms_norm.py).
//
// One block per row. The sum x + residual is rounded to the storage type and kept in registers
// between both passes, statistics are float32. The order of summation is fixed: each thread adds its
// values from left to right, then a tree over the lanes of a warp, then over warps. So the bits of a
// row depend on that row alone.
//
// No header of torch is used here, so that nvcc alone can compile it; bindings.cpp checks tensors.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxPerThread = 32;  // rows of up to 8192 values

__device__ inline float load(const float* p) { return *p; }
__device__ inline float load(const __half* p) { return __half2float(*p); }
__device__ inline float load(const __nv_bfloat16* p) { return __bfloat162float(*p); }

__device__ inline void store(float* p, float v) { *p = v; }
__device__ inline void store(__half* p, float v) { *p = __float2half_rn(v); }
__device__ inline void store(__nv_bfloat16* p, float v) { *p = __float2bfloat16_rn(v); }

// Returns the sum over the block, to all threads.
__device__ float block_sum(float value) {
    __shared__ float of_warp[kWarps];
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    float total = 0.0f;
    for (int warp = 0; warp < kWarps; ++warp) total += of_warp[warp];
    return total;
}

template <typename T, int PerThread>
__global__ void __launch_bounds__(kThreads)
    add_rms_norm_kernel(const T* x, const T* residual, const float* weight, T* normed, T* total,
                        int size, long x_stride, long residual_stride, float eps) {
    const long row = blockIdx.x;
    float values[PerThread];
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < PerThread; ++i) {
        const int column = i * kThreads + threadIdx.x;
        values[i] = 0.0f;
        if (column < size) {
            float value = load(x + row * x_stride + column);
            if (residual != nullptr) {
                T* target = total + row * size + column;
                store(target, value + load(residual + row * residual_stride + column));
                value = load(target);  // as rounded
            }
            values[i] = value;
            squares += value * value;
        }
    }
    const float factor = rsqrtf(block_sum(squares) / size + eps);
#pragma unroll
    for (int i = 0; i < PerThread; ++i) {
        const int column = i * kThreads + threadIdx.x;
        if (column < size) store(normed + row * size + column, values[i] * factor * weight[column]);
    }
}

template <typename T>
cudaError_t launch(const void* x, const void* residual, const float* weight, void* normed,
                   void* total, int rows, int size, long x_stride, long residual_stride, float eps,
                   cudaStream_t stream) {
    auto run = [&](auto kernel) {
        kernel<<<rows, kThreads, 0, stream>>>(
            static_cast<const T*>(x), static_cast<const T*>(residual), weight,
            static_cast<T*>(normed), static_cast<T*>(total), size, x_stride, residual_stride, eps);
        return cudaGetLastError();
    };
    const int per_thread = (size + kThreads - 1) / kThreads;
    if (per_thread <= 4) return run(add_rms_norm_kernel<T, 4>);
    if (per_thread <= 16) return run(add_rms_norm_kernel<T, 16>);
    return run(add_rms_norm_kernel<T, kMaxPerThread>);
}

}  // namespace

// Longest row that the kernel takes.
extern "C" int infopt_rms_norm_max_size() { return kThreads * kMaxPerThread; }

// type: 0 float32, 1 float16, 2 bfloat16. Strides in values. Returns a cudaError_t.
extern "C" int infopt_add_rms_norm(int type, const void* x, const void* residual,
                                   const float* weight, void* normed, void* total, int rows,
                                   int size, long x_stride, long residual_stride, float eps,
                                   void* stream) {
    const auto on = static_cast<cudaStream_t>(stream);
    switch (type) {
        case 0:
            return launch<float>(x, residual, weight, normed, total, rows, size, x_stride,
                                 residual_stride, eps, on);
        case 1:
            return launch<__half>(x, residual, weight, normed, total, rows, size, x_stride,
                                  residual_stride, eps, on);
        case 2:
            return launch<__nv_bfloat16>(x, residual, weight, normed, total, rows, size, x_stride,
                                         residual_stride, eps, on);
        default:
            return cudaErrorInvalidValue;
    }
}
