// Work items over the threads that torch was told to use.
#pragma once

#include <omp.h>

#include <cstdint>

namespace infopt {

// Calls f(i) for 0 <= i < num_items, each exactly once, on at most num_threads threads.
//
// Items are handed out one at a time, so unequal items balance. Which thread computes an item must
// not matter to its result.
template <typename F>
inline void parallel_for(int64_t num_items, int num_threads, const F& f) {
  if (num_threads <= 1 || num_items <= 1) {
    for (int64_t i = 0; i < num_items; ++i) f(i);
    return;
  }
#pragma omp parallel for schedule(dynamic, 1) num_threads(num_threads)
  for (int64_t i = 0; i < num_items; ++i) f(i);
}

// Calls f(begin, end) on one contiguous range of rows per thread.
template <typename F>
inline void parallel_ranges(int64_t num_rows, int num_threads, const F& f) {
  if (num_threads <= 1 || num_rows <= 1) {
    f(int64_t{0}, num_rows);
    return;
  }
#pragma omp parallel num_threads(num_threads)
  {
    const int64_t n = omp_get_num_threads(), i = omp_get_thread_num();
    f(num_rows * i / n, num_rows * (i + 1) / n);
  }
}

// Threads for a task of this many elementary steps: a fork and join costs about 5 microseconds.
inline int threads_for(int64_t num_steps, int64_t steps_per_thread, int max_threads) {
  const int64_t useful = num_steps / steps_per_thread;
  return useful >= max_threads ? max_threads : (useful < 1 ? 1 : static_cast<int>(useful));
}

}  // namespace infopt
