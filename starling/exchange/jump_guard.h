// Refuses blocks whose values have jumped away from this worker's: the memory of one of the two was
// corrupted silently, or one has diverged. A block is measured once it is whole, against the one
// that this worker sends for the same swap, before this worker votes. So a refused block is aborted
// at both ends, as one with NaNs.
//
//   distance   RMS of theirs - mine, over the parameters of a block; the same at both ends
//   usual      that of this block to any worker (usual_distance.h); one of each worker in a step,
//              since swaps without steps make workers equal
//   jump       a distance above `factor` times the usual one
//   doubtful   the last block of more than half of the neighbours has jumped, as this worker sees
//              it: either it has jumped itself, or they have. Both ends see that at once
//   apart      this worker is the one that has jumped: neighbours refuse its block, and take those
//              of others
//
// The one that refuses tells the other, which may not have measured yet. It also says whether it
// takes those of others. Nothing jumps before enough distances are known. If the blocks of all
// neighbours jump, as many in a row, and none of them takes those of others, the run itself has
// changed, for example by its learning rate: these distances become the usual ones.
//
// It is no defence against an adversary, who can move a little in each round.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "starling/core/log.h"
#include "starling/exchange/edge.h"
#include "starling/exchange/sent_block.h"
#include "starling/exchange/usual_distance.h"
#include "starling/transport/frame.h"

namespace starling {

// How a worker stands among the others, as far as it knows.
enum class Standing { usual, doubtful, apart };

// On the transport's thread, except where stated.
class JumpGuard {
 public:
  // After so many refusals in a row a worker is told that the blocks of others are usual.
  static constexpr std::uint64_t kStays = 3;

  struct Options {
    double factor = 0;  // 0: takes everything, at no cost
    std::size_t blocks = 0;
    std::set<int> neighbours{};
    std::vector<UsualDistance> usual{};  // what usual() of an earlier guard has said
    const char* counted = "round";       // what SwapId::round counts
    Log log{};
    // Tells a worker that its block jumps. `others`: those of others do not.
    std::function<void(int rank, SwapId id, double distance, bool others)> tell{};
  };
  explicit JumpGuard(Options options);

  bool is_on() const { return options_.factor > 0; }
  // Whether this worker, after steps(), refuses their whole block of a swap that it has begun:
  // `begun` has it, with its own block as `mine`. values: the parameters of the block, which are
  // its first values. Costs a read of both. False, at no cost, if the guard is off.
  template <class Swap, class Steps>
  bool refuses(int rank, const std::map<SwapId, Swap>& begun, SwapId id, const Steps& steps,
               const SentBlock& theirs, std::size_t values) {
    if (!is_on() || values == 0) return false;
    const auto swap = begun.find(id);
    return swap != begun.end() && refuses(rank, id, steps(), distance_of(theirs, swap->second.mine, values));
  }
  // The same for a measured distance.
  bool refuses(int rank, SwapId id, std::uint64_t steps, double distance);
  // The other worker tells this one what `tell` says.
  void was_refused(int rank, SwapId id, double distance, bool others);
  // Blocks that this worker has refused. On any thread.
  std::uint64_t refused() const { return refused_; }
  void lost(int rank);  // its process is gone
  // All begin again: what has jumped so far says nothing any more.
  void forget_jumps();
  // A swap with this worker has committed.
  void committed(int rank, std::uint32_t block);
  // apart: at least half of the neighbours say that this worker's block jumps, and those of others
  // do not. On any thread.
  Standing standing() const { return standing_; }
  // By block. On any thread.
  std::vector<UsualDistance> usual() const;

 private:
  struct Neighbour {                          // one worker's block
    std::optional<std::uint64_t> learned_at;  // after so many steps of this worker
    std::uint64_t round = 0;                  // the last one that was measured, here or there
    std::uint64_t refused_in_a_row = 0;
    std::uint64_t taken_before = 0;  // Block::taken at the last refusal
  };
  struct Block {
    void forget_refused() {
      usual.forget_refused();
      jumpers.clear();
    }
    UsualDistance usual;                  // it forgets what it refused when a neighbour takes those of others
    std::set<int> jumpers;                // the workers that those are of
    std::uint64_t taken = 0;              // blocks of any worker
    std::map<int, Neighbour> neighbours;  // by rank
    std::set<int> far;                    // the workers whose last one has jumped
    std::set<int> told;                   // by these workers
  };
  static double distance_of(const SentBlock& theirs, const SentBlock& mine, std::size_t values);
  bool is_jump(const Block& block, double distance) const {
    return block.usual.is_jump(distance, options_.factor);
  }
  bool is_doubtful(const Block& block) const;
  bool is_apart(const Block& block) const;
  void judge();
  // Returns whether the blocks of others are usual, while those of that worker stay away.
  bool count_refusal(int rank, SwapId id, double distance);

  const Options options_;
  mutable std::mutex mutex_;  // of each block's `usual`, where this thread changes it
  std::vector<Block> blocks_;
  std::size_t known_ = 0;  // blocks whose usual distance is known
  std::set<int> heard_;    // neighbours whose blocks were measured
  std::set<int> gone_;     // neighbours that are lost
  std::set<int> named_;    // in a message
  std::atomic<std::uint64_t> refused_ = 0;
  std::atomic<Standing> standing_ = Standing::usual;
};

// The frame in which `tell` crosses an edge.
inline Frame jump_frame(SwapId id, double distance, bool others) {
  return {.type = FrameType::jumps,
          .round = id.round,
          .block = id.block,
          .step = others ? 1U : 0U,
          .value = std::bit_cast<std::uint64_t>(distance)};
}
inline double jump_distance(const Frame& frame) { return std::bit_cast<double>(frame.value); }

}  // namespace starling
