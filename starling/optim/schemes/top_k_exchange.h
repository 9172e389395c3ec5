// The exchange of top-k messages (top_k_message.h) inside a step, over a topology of symmetric
// rounds:
//
//   sum <- sum + weight Sum_j W_ij q_j              q_j: what j has chosen of its v
//   x_i <- x_i + Sum_j W_ij (x_j - x_i)             where the turn's samples are
//
// If the swap with j is lost, i takes its own q in place of j's, and so does j. So the sum of all
// `sum` takes each q once, up to rounding. A swap that was in doubt is taken late, with what was
// sent then. The terms are added by rising rank. So over the complete graph all workers add the
// same numbers in the same order, and get the same bits.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "starling/optim/schemes/scheme.h"
#include "starling/optim/schemes/top_k_message.h"

namespace starling {

class TopKExchange {
 public:
  using PartsOf = std::vector<TopKMessage::Part> (*)(const Block&);
  TopKExchange(const World& world, int one_in, bool in_levels, PartsOf parts)
      : rank_(world.rank), one_in_(one_in), in_levels_(in_levels), parts_(parts) {}

  void attach(const Connection& connection, std::span<const Block> blocks);
  void restart() { next_ = 0; }
  // The number "sample": the turn of the next round. A resumed run has the same ones.
  void state(StateVisitor& visitor);

  // v <- v - q, which is sent with the sample of x. Not finite: nothing is sent, q is 0, and v
  // keeps its values.
  void send(const Block& block, const at::Tensor& v, const at::Tensor& x, bool finite);
  // Waits for the neighbours. `sum` may be x.
  void take(const Block& block, float weight, const at::Tensor& sum, const at::Tensor& x);

 private:
  std::uint64_t turns() const { return messages_.front().turns(); }
  std::uint64_t turn_of(std::uint64_t round) const {
    return ((round - 1) / schedule_.rounds.size() + offset_) % turns();
  }
  std::uint64_t next_turn() const { return next_ ? *next_ : turn_of(round_ + 1); }

  const int rank_, one_in_;
  const bool in_levels_;
  const PartsOf parts_;
  Exchange* exchange_ = nullptr;
  Schedule schedule_;
  std::vector<TopKMessage> messages_;    // by block
  std::vector<std::vector<float>> own_;  // by block: this round's
  std::uint64_t round_ = 0, offset_ = 0;
  std::optional<std::uint64_t> next_ = 0;  // the turn of the next round, whatever its number is
};

}  // namespace starling
