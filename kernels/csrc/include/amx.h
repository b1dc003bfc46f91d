// AMX tiles: permission and configuration.
//
// A tile has 16 rows of 64 bytes. Tile products here use the convention
//   tiles 0-3: sums, tiles 4-5: rows of x, tiles 6-7: packed weights.
#pragma once

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__linux__)
#define INFOPT_AMX 1

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace infopt {

// Asks the system for the tile registers, once per process.
inline bool amx_permitted() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  static const bool permitted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return permitted;
}

// The compiler does not know that tile instructions read memory: without this it may drop or delay
// stores to what they load.
inline void finish_stores() { asm volatile("" ::: "memory"); }

// Layout that LDTILECFG reads.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int num_rows, int num_bytes) {
    rows[tile] = static_cast<uint8_t>(num_rows);
    row_bytes[tile] = static_cast<uint16_t>(num_bytes);
  }
};
static_assert(sizeof(TileConfig) == 64);

inline void load_config(const TileConfig& config) {
  finish_stores();
  _tile_loadconfig(&config);
}

// Configures the tiles of this thread and frees them at the end of the scope: tiles in use make
// every context switch save 8 KB.
class TileScope {
 public:
  TileScope() = default;
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
  ~TileScope() { _tile_release(); }

  // Sums of `rows` rows (1 to 32) in two tile rows of 16, times two weight tiles.
  void configure(int rows) {
    if (rows == rows_) return;
    rows_ = rows;
    const int upper = rows < 16 ? rows : 16, lower = rows > 16 ? rows - 16 : upper;
    TileConfig config;
    for (int tile : {0, 1, 4}) config.set(tile, upper, 64);
    for (int tile : {2, 3, 5}) config.set(tile, lower, 64);
    for (int tile : {6, 7}) config.set(tile, 16, 64);
    load_config(config);
  }

 private:
  int rows_ = 0;
};

}  // namespace infopt
#endif
