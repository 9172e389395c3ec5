// The message of a worker that sends the largest values of a vector v and a sample of a vector x,
// the same to all neighbours. Its values take fewer bytes than those of kernels/top_k.h.
//
//   part     consecutive values of v, in chunks; the last chunk may be shorter
//   chosen   of a chunk of n values the ceil(n / one_in) largest; of equal ones the first
//   levels   each chosen value as one of four: the means of the part's chosen values in four bins.
//            A part with up to four chosen values has these as its levels
//   sample   one value of x in turns(), another one in each turn. If x should be the same on all
//            workers, a sample mends what a lost exchange has left
//
//   message  the sample; the levels, or the values, of each part; the entries
//   entry    14 bits: place in the chunk, 2 bits for the level. A float holds two. Its upper four
//            bits are 0, so it is finite, as the exchange wants it
//
// With one_in = 1 a message is x and v, without entries and levels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace starling {

class TopKMessage {
 public:
  static constexpr std::int64_t kMostInChunk = 4096;
  struct Part {
    std::int64_t length = 0;
    std::int64_t chunk = kMostInChunk;  // at most that
  };
  // The lengths add up to that of v. x has the same length.
  TopKMessage(std::span<const Part> parts, int one_in, bool in_levels);

  std::size_t size() const { return sample_ + levels_ + (all_ ? 0 : (entries_ + 1) / 2); }
  std::uint64_t turns() const { return turns_; }

  // Writes the message. All values of v are finite.
  void write(std::span<const float> v, std::span<const float> x, std::uint64_t turn,
             std::span<float> message) const;
  // v <- v + weight * what was chosen. The message may lie in another worker's memory.
  void add(std::span<const float> message, float weight, std::span<float> v) const;
  // x <- x + weight (theirs - mine) where the turn's samples are.
  void mix_sample(std::span<const float> theirs, std::span<const float> mine, float weight,
                  std::uint64_t turn, std::span<float> x) const;

 private:
  struct Chunk {
    std::size_t part = 0;
    std::int64_t begin = 0, length = 0;
    std::size_t entry = 0, entries = 0;  // the first one of all, and how many
  };
  struct Chosen {
    std::size_t entry = 0, entries = 0;
    std::size_t level = 0, levels = 0;  // with values: one for each entry
  };

  std::vector<std::uint32_t> places_of(std::span<const float> v) const;
  void write_levels(const Chosen& part, std::span<const float> values, std::span<float> message,
                    std::span<std::uint32_t> entries) const;

  const bool all_, in_levels_;
  const std::uint64_t turns_;
  std::vector<Chunk> chunks_;
  std::vector<Chosen> parts_;
  std::size_t sample_ = 0, levels_ = 0, entries_ = 0;
};

}  // namespace starling
