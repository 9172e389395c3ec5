// The swaps of each block: how many are open, what has arrived, and the counts of all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "starling/exchange/edge.h"
#include "starling/exchange/monitor.h"
#include "starling/exchange/sent_block.h"

namespace starling {

struct ExchangeStatistics {
  std::uint64_t rounds = 0;
  std::uint64_t skipped_rounds = 0;  // by jumping
  std::uint64_t committed = 0;       // blocks, summed over neighbours
  std::uint64_t aborted = 0;
  std::uint64_t jumped = 0;  // the aborted ones that this worker refused (jump_guard.h)
  std::uint64_t late = 0;    // mixed late, after a broken connection was mended
  // The aborted ones on directed edges where shares are not pushed, and what a scheme adds that has
  // missed rounds: each moves the mean a little.
  std::uint64_t directed_aborted = 0;
  std::uint64_t bytes_sent = 0;      // over links, and what neighbours on this host read in place
  std::uint64_t bytes_in_place = 0;  // the latter alone
  std::uint64_t payload_sent = 0;    // bytes_sent without headers and control
  double seconds_waiting = 0;        // inside finish()
  std::set<int> lost;
  // Blocks taken from each neighbour, outside of groups (Statistics::mixed).
  std::map<int, std::uint64_t> mixed;

  ExchangeStatistics& operator+=(const ExchangeStatistics& more);
};

class Ledger {
 public:
  // The monitor outlives it.
  Ledger(std::size_t blocks, Monitor& monitor) : monitor_(monitor), blocks_(blocks) {}

  // --- on the training thread, with the lock ---
  bool decided(int block) const { return at(block).open == 0; }
  // Returns what was committed, by rising rank, then what was mended late. Valid until the block's
  // next begin().
  std::span<const Arrival> finish(int block);
  void begin(int block, int swaps);
  void forget();  // what was handed out, and what was mended
  ExchangeStatistics& counts() { return counts_; }
  const ExchangeStatistics& counts() const { return counts_; }

  // --- on the transport's thread; these take the lock ---
  void add_open(SwapId id, std::size_t swaps);
  // One of the open swaps is decided. counted: as so many swaps. `arrival` is handed out.
  void committed(SwapId id, std::optional<Arrival> arrival, std::size_t counted = 1);
  void aborted(SwapId id, std::optional<Arrival> arrival, std::size_t counted, bool directed = false);
  // A swap in doubt has come to an end. late: it was committed, so many times.
  void mended(SwapId id, Arrival arrival, std::size_t late);

 private:
  struct Swaps {                    // of one block
    int open = 0;                   // swaps not yet decided; a group's counts as one
    std::vector<Arrival> arrived;   // committed
    std::vector<Arrival> mended;    // committed late
    std::vector<Arrival> finished;  // what finish() returned
  };
  Swaps& at(int block) { return blocks_[static_cast<std::size_t>(block)]; }
  const Swaps& at(int block) const { return blocks_[static_cast<std::size_t>(block)]; }
  void close(SwapId id, std::optional<Arrival> arrival);

  Monitor& monitor_;
  // With the monitor's lock.
  std::vector<Swaps> blocks_;
  ExchangeStatistics counts_;
};

}  // namespace starling
