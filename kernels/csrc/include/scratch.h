// Reusable aligned memory of one thread, so that a kernel call allocates nothing after the first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace infopt {

class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { std::free(data_); }

  // Makes room for `bytes`; invalidates what was handed out before.
  void reserve(size_t bytes) {
    used_ = 0;
    if (bytes <= capacity_) return;
    std::free(data_);
    capacity_ = (bytes + kAlign - 1) / kAlign * kAlign;
    data_ = static_cast<char*>(std::aligned_alloc(kAlign, capacity_));
    if (data_ == nullptr) {
      capacity_ = 0;
      throw std::bad_alloc();
    }
  }

  // Next `count` elements of what was reserved, aligned to a cache line.
  template <typename T>
  T* take(size_t count) {
    T* part = reinterpret_cast<T*>(data_ + used_);
    used_ += size_of<T>(count);
    return part;
  }

  // Bytes that take<T>(count) uses.
  template <typename T>
  static size_t size_of(size_t count) {
    return (count * sizeof(T) + kAlign - 1) / kAlign * kAlign;
  }

 private:
  static constexpr size_t kAlign = 64;
  char* data_ = nullptr;
  size_t capacity_ = 0;
  size_t used_ = 0;
};

}  // namespace infopt
