// The kernels of every instruction set that runs here, against each other to the bit.
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "tests/kernels/update.h"

namespace starling::kernels {
namespace {

// One step of every rule, with one way of splitting and sending.
struct Way {
  const Kernels* kernels;
  bool stream;
  std::size_t piece;   // parameters per call
  std::size_t offset;  // of the arrays from the beginning of a cache line, in floats
};

// Values with room at both ends.
struct Array {
  Array(const Values& values, std::size_t offset) : all(values.size() + 2 * kMargin, kUntouched) {
    const std::size_t line = reinterpret_cast<std::uintptr_t>(all.data()) / sizeof(float) % 16;
    begin = static_cast<std::ptrdiff_t>((16 - line) % 16 + offset);
    end = std::ranges::copy(values, all.begin() + begin).out - all.begin();
  }
  float* at(std::size_t i) { return &all[static_cast<std::size_t>(begin) + i]; }
  Values taken() const {
    const auto first = all.begin() + begin, last = all.begin() + end;
    EXPECT_EQ(std::count(all.begin(), first, kUntouched), begin) << "written before " << end - begin;
    EXPECT_EQ(std::count(last, all.end(), kUntouched), all.end() - last) << "written behind " << end - begin;
    return {first, last};
  }
  static constexpr float kUntouched = 12345;
  static constexpr std::size_t kMargin = 32;
  Values all;
  std::ptrdiff_t begin, end;
};

struct Result {
  Values x, outgoing, m, v, b;
  bool operator==(const Result& o) const {
    return same_bits(x, o.x) && same_bits(outgoing, o.outgoing) && same_bits(m, o.m) && same_bits(v, o.v) &&
           same_bits(b, o.b);
  }
};

Result run(const Way& way, const Step& step, int neighbours, std::size_t n) {
  const auto array = [&](std::uint32_t seed) { return Array(random_values(n, seed), way.offset); };
  Array x = array(1), m = array(2), v = array(3), b = array(4), g = array(5);
  Array outgoing(Values(n, 0.0f), way.offset);
  for (float& value : v.all) value = std::abs(value);
  const Values mine = random_values(n, 6);
  const Neighbours near(neighbours, n, 7);
  for (std::size_t at = 0; at < n; at += way.piece) {
    std::vector<Mix> mixes = near.mixes(mine);
    for (Mix& mix : mixes) {
      mix.theirs = static_cast<const float*>(mix.theirs.values) + at;
      mix.mine = static_cast<const float*>(mix.mine.values) + at;
    }
    way.kernels->update(step, mixes, x.at(at), {g.at(at), 0.3f}, {m.at(at), v.at(at), b.at(at)},
                        {outgoing.at(at), way.stream}, std::min(way.piece, n - at));
  }
  return {x.taken(), outgoing.taken(), m.taken(), v.taken(), b.taken()};
}

TEST_P(Update, TheSameBitsWithEveryInstructionSetHoweverItIsSplitAndSent) {
  const AccumAdamW o{.lr = 0.01, .betas = {0.9, 0.98}, .weight_decay = 0.1, .window = 3};
  const Step steps[] = {SgdStep::at(SGD{.lr = 0.05, .weight_decay = 0.03}, 1),
                        MomentumStep::at(SGD{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.03}, 1),
                        AdamStep::at(o, false, 4),
                        AdamStep::at(o, true, 4),
                        accum_adam_step<Step>(o, true, 2),
                        accum_adam_step<Step>(o, false, 3),
                        MuonStep{.lr_r = 0.03f, .keep = 0.97f}};
  const Kernels& reference = supported_kernels().back();  // the compiler's own code
  for (const Step& step : steps) {
    for (const std::size_t n : {1u, 15u, 64u, 67u, 200u, 1031u}) {
      for (const int neighbours : {0, 1, 4, 6}) {
        const Result whole = run({&reference, false, n, 0}, step, neighbours, n);
        ASSERT_TRUE(same_bits(whole.x, whole.outgoing));
        for (const bool stream : {false, true}) {
          for (const std::size_t piece : {n, std::size_t{37}, std::size_t{128}}) {
            for (const std::size_t offset : {0u, 1u, 4u, 15u}) {
              ASSERT_EQ(run({&GetParam(), stream, piece, offset}, step, neighbours, n), whole)
                  << "rule " << step.index() << ", n = " << n << ", neighbours = " << neighbours
                  << ", stream = " << stream << ", piece = " << piece << ", offset = " << offset;
            }
          }
        }
      }
    }
  }
}

// One number for all bits of all rules: the same on x86 and ARM.
TEST_P(Update, TheSameBitsOnEveryMachine) {
  const std::size_t n = 257;
  auto values = [numbers = Numbers()]() mutable {
    Values all(n);
    std::ranges::generate(all, std::ref(numbers));
    return all;
  };
  // Coefficients that are exact in binary, because pow() and division before the kernels are not
  // tested here.
  const AdamStep adam{.beta1 = 0.875f,
                      .gain1 = 0.125f,
                      .beta2 = 0.96875f,
                      .gain2 = 0.03125f,
                      .l2 = 0.0625f,
                      .keep = 0.99609375f,
                      .lr_u = {.lr_hat = 0.01171875f, .root = 1.0625f, .eps = 0x1p-20f}};
  const Step rules[] = {SgdStep{.lr = 0.046875f, .wd = 0.0625f},
                        MomentumStep{.lr = 0.046875f, .mu = 0.875f, .wd = 0.0625f, .nesterov = true}, adam,
                        AccumAdamStep<false>{adam, 0.34375f}, AccumAdamStep<true>{adam, 0.34375f}};
  Values x = values(), m = values(), v = values(), b = values(), outgoing(n);
  for (float& value : v) value = std::abs(value);
  for (int t = 0; t < 10; ++t) {
    for (const Step& rule : rules) {
      const Values g = values(), theirs = values(), mine = values();
      const Mix mix{0.4375f, theirs.data(), mine.data()};
      GetParam().update(rule, {&mix, 1}, x.data(), {g.data(), 0.75f}, {m.data(), v.data(), b.data()},
                        {outgoing.data()}, n);
    }
  }
  Hash hash;
  for (const Values* all : {&x, &m, &v, &b, &outgoing}) hash.add(*all);
  const double squares = GetParam().sum_of_squares(x.data(), Wire::fp32, n);
  hash.add(std::bit_cast<std::uint64_t>(squares));
  EXPECT_EQ(hash.value, 16566543008082432276u) << "squares " << squares;
}

}  // namespace
}  // namespace starling::kernels
