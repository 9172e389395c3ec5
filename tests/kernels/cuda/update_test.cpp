// The code that NVRTC compiles for the GPU, compiled by the ordinary compiler and run thread by
// thread. Its bits are those of kernels::update.
#include "starling/kernels/update.h"

// clang-format off: the device's words come before the program that uses them.
#include "tests/kernels/cuda/device.h"
#include "starling/kernels/cuda/program.cuh"
// clang-format on

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "starling/gossip/a2cid2.h"
#include "starling/kernels/cuda/program.h"
#include "starling/kernels/cuda/table.h"

namespace starling::kernels::cuda {
namespace {

using Bytes = std::vector<std::byte>;

// An entry of update.cuh or renew.cuh, and its place in kUpdateEntries.
template <class Row>
using EntryOf = void(const Row*, std::uint32_t, const Mix*, std::uint32_t*);
template <class Rule>
using Entry = EntryOf<Segment<Rule>>;
template <class Rule>
std::size_t place(const Segment<Rule>*) {
  return Step(std::in_place_type<Rule>).index();
}
std::size_t place(const Renewal*) { return kUpdateEntries.size() - 1; }

// The launch of all blocks of a table whose segments are of one kind. Returns whether all values
// are finite.
template <class Row>
bool launch(EntryOf<Row>* entry, Table& table) {
  static device::Warp warp;
  std::vector<std::max_align_t> memory(table.bytes() / sizeof(std::max_align_t) + 1);
  auto* const at = reinterpret_cast<std::byte*>(memory.data());
  std::uint32_t not_finite = 0;
  const std::vector<Table::Launch> launches = table.write(at);
  EXPECT_LE(launches.size(), 1u);
  for (const Table::Launch& all : launches) {
    const auto* const segments = reinterpret_cast<const Row*>(at + all.segments);
    EXPECT_EQ(all.entry, place(segments));
    auto body = [&] { entry(segments, all.count, reinterpret_cast<const Mix*>(at), &not_finite); };
    for (blockIdx.x = 0; blockIdx.x < all.blocks; ++blockIdx.x) {
      for (std::uint32_t thread = 0; thread < kThreads; thread += device::Warp::kLanes)
        warp.run([](void* f) { (*static_cast<decltype(body)*>(f))(); }, &body, thread, threadIdx);
    }
  }
  return not_finite == 0;
}

class Random {
 public:
  explicit Random(std::uint32_t seed) : generator_(seed) {}
  std::vector<float> floats(std::size_t n, float scale = 1) {
    std::normal_distribution<float> normal(0, scale);
    std::vector<float> values(n);
    for (float& value : values) value = normal(generator_);
    return values;
  }
  // Values in a format, or any codes. `shift` values come first, so that they are not aligned.
  Bytes in(Wire format, std::size_t n, std::size_t shift) {
    Bytes bytes(bytes_of(format, shift) + bytes_of(format, n));
    if (is_modular(format)) {
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(generator_());
    } else {
      const std::vector<float> values = floats(n + shift);
      kernels::encode(values.data(), n + shift, format, bytes.data());
    }
    return bytes;
  }

 private:
  std::mt19937 generator_;
};

// The block of one neighbour, and the block that it was sent.
struct Edge {
  Wire wire;
  Bytes theirs, mine;
  int their_exponent, my_exponent;
  Measured measured;
};

// One segment with all its memory.
struct Memory {
  std::size_t n, shift;
  Wire format, wire;
  Bytes p, g, sent;
  std::vector<float> master, m, v, b;
  std::vector<Edge> edges;
  bool has_gradient = true, sends = true, clears;
  int exponent = -6;
  std::uint32_t sum = 5;  // the sum is added to it

  Memory(std::size_t n, Wire format, Wire wire, std::size_t neighbours, std::uint32_t seed)
      : n(n), shift(seed % 3), format(format), wire(wire), clears(seed % 2 == 0) {
    Random random(seed);
    p = random.in(format, n, shift), g = random.in(format, n, shift), sent = random.in(wire, n, shift);
    master.resize(n + shift);
    decode(p.data(), format, n + shift, master.data());
    // A master has bits that the parameter lacks, and some parameters were changed by another
    // party.
    const std::vector<float> noise = random.floats(n + shift, 1e-4f);
    for (std::size_t i = 0; i < n + shift; ++i) master[i] *= 1 + noise[i] * (i % 11 == 0 ? 1e4f : 1);
    m = random.floats(n + shift), v = random.floats(n + shift), b = random.floats(n + shift);
    for (float& value : v) value = std::abs(value);
    for (std::size_t j = 0; j < neighbours; ++j) {
      // A mean comes as fp32, whatever the wire. Grids differ, also by too much.
      const Wire theirs = !is_modular(wire) && j == 2 ? Wire::fp32 : wire;
      edges.push_back({theirs,
                       random.in(theirs, n, shift),
                       random.in(theirs, n, shift),
                       -5,
                       j == 3 ? -20 : -5 - static_cast<int>(j),
                       {3, 7}});
    }
  }

  std::byte* at(Bytes& bytes, Wire of) const { return bytes.data() + bytes_of(of, shift); }
  Parameters parameters() {
    if (format == Wire::fp32) return {reinterpret_cast<float*>(at(p, format))};
    return {at(p, format), format, master.data() + shift};
  }
  Gradient gradient() {
    if (!has_gradient) return {nullptr, 0.7f};
    return {at(g, format), 0.7f, clears ? at(g, format) : nullptr};
  }
  template <class Rule>
  RuleState state() {
    return {Rule::kStates > 0 ? m.data() + shift : nullptr, Rule::kStates > 1 ? v.data() + shift : nullptr,
            Rule::kStates > 2 ? b.data() + shift : nullptr};
  }
  WireBlock wire_block() {
    WireBlock block(sends ? at(sent, wire) : nullptr, wire);
    block.exponent = exponent, block.sum = &sum;
    return block;
  }
  std::vector<Mix> mixes() {
    std::vector<Mix> mixes;
    for (Edge& e : edges) {
      mixes.push_back({0.2f + 0.1f * static_cast<float>(mixes.size()),
                       {at(e.theirs, e.wire), e.wire, e.their_exponent},
                       {at(e.mine, e.wire), e.wire, e.my_exponent},
                       &e.measured});
    }
    return mixes;
  }
};

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

void expect_same(const Memory& device, const Memory& host) {
  EXPECT_TRUE(same(device.p, host.p)) << "parameters";
  EXPECT_TRUE(same(device.g, host.g)) << "gradient";
  EXPECT_TRUE(same(device.master, host.master)) << "masters";
  EXPECT_TRUE(same(device.m, host.m)) << "m";
  EXPECT_TRUE(same(device.v, host.v)) << "v";
  EXPECT_TRUE(same(device.b, host.b)) << "b";
  EXPECT_TRUE(same(device.sent, host.sent)) << "wire block";
  EXPECT_EQ(device.sum, host.sum);
  for (std::size_t j = 0; j < host.edges.size(); ++j) {
    EXPECT_EQ(device.edges[j].measured.largest, host.edges[j].measured.largest) << "neighbour " << j;
    EXPECT_EQ(device.edges[j].measured.sum, host.edges[j].measured.sum) << "neighbour " << j;
  }
}

// Both do one step on all segments: the device in one launch, each segment with coefficients of its
// own.
template <class Rule>
bool step_both(Entry<Rule>* entry, const std::vector<Rule>& rules, std::vector<Memory>& device,
               std::vector<Memory>& host) {
  Table table;
  bool host_finite = true;
  for (std::size_t s = 0; s < device.size(); ++s) {
    Memory& d = device[s];
    table.add(rules[s], d.mixes(), d.parameters(), d.gradient(), d.state<Rule>(), d.wire_block(), d.n);
    Memory& h = host[s];
    host_finite &= kernels::update(rules[s], h.mixes(), h.parameters(), h.gradient(), h.state<Rule>(),
                                   h.wire_block(), h.n);
  }
  const bool finite = launch(entry, table);
  EXPECT_EQ(finite, host_finite);
  return finite;
}

AdamStep adam(std::size_t t) {
  struct {
    double lr, betas[2], eps, weight_decay;
  } options{0.01, {0.9, 0.98}, 1e-8, 0.1};
  return AdamStep::at(options, t % 2 == 0, static_cast<std::int64_t>(t));
}

// Calls f(entry, rule) for each kind of rule. rule(s) gives the coefficients for segment s.
template <class F>
void for_each_rule(F f) {
  f(starling_sgd, [](std::size_t s) { return SgdStep{.lr = 0.1f / static_cast<float>(s + 1), .wd = 0.01f}; });
  f(starling_momentum, [](std::size_t s) {
    return MomentumStep{.lr = 0.1f, .mu = 0.9f, .wd = 0.01f * static_cast<float>(s), .nesterov = s % 2 == 1};
  });
  f(starling_adam, [](std::size_t s) { return adam(s + 1); });
  f(starling_accum_adam,
    [](std::size_t s) { return AccumAdamStep<false>{.adam = adam(s + 1), .share = 0.25f}; });
  f(starling_accum_adam_window_end,
    [](std::size_t s) { return AccumAdamStep<true>{.adam = adam(s + 1), .share = 0.25f}; });
  f(starling_muon,
    [](std::size_t s) { return MuonStep{.lr_r = 0.1f * static_cast<float>(s + 1), .keep = 0.9f}; });
}

template <class F>
auto rules_of(const F& rule, std::size_t count) {
  std::vector<decltype(rule(0))> rules;
  for (std::size_t s = 0; s < count; ++s) rules.push_back(rule(s));
  return rules;
}

class CudaUpdate : public testing::TestWithParam<std::tuple<Wire, Wire>> {};
INSTANTIATE_TEST_SUITE_P(Formats, CudaUpdate,
                         testing::Combine(testing::Values(Wire::fp32, Wire::bf16, Wire::fp16),
                                          testing::Values(Wire::fp32, Wire::bf16, Wire::fp16, Wire::int8,
                                                          Wire::int4)),
                         [](const auto& info) {
                           return std::string(name_of(std::get<0>(info.param))) + "_sent_as_" +
                                  std::string(name_of(std::get<1>(info.param)));
                         });

// 0 to 4 neighbours; lengths around those of a thread, a warp and a block of threads; aligned and
// not. There are two steps, so that the second one begins with the results of the first one.
TEST_P(CudaUpdate, IsThatOfTheProcessorToTheBit) {
  const auto [format, wire] = GetParam();
  for_each_rule([&]<class Rule>(Entry<Rule>* entry, auto rule) {
    SCOPED_TRACE(testing::Message() << "rule with " << Rule::kStates << " states, of " << sizeof(Rule)
                                    << " bytes");
    std::vector<Memory> device;
    std::uint32_t seed = 1;
    for (const std::size_t n : {1u, 3u, 0u, 131u, 1026u, 4096u, 4097u}) {
      device.emplace_back(n, format, wire, seed % 5, seed);
      ++seed;
    }
    device[1].has_gradient = false;  // two neighbours
    device[4].has_gradient = false;  // none
    device[5].sends = false;
    std::vector<Memory> host = device;
    for (int step = 0; step < 2; ++step) {
      const std::vector<Memory> before = host;
      EXPECT_TRUE(step_both(entry, rules_of(rule, device.size()), device, host));
      for (std::size_t s = 0; s < device.size(); ++s) {
        SCOPED_TRACE(testing::Message() << "step " << step << ", segment " << s << " of " << device[s].n);
        expect_same(device[s], host[s]);
      }
      EXPECT_FALSE(same(before[6].p, host[6].p));
      EXPECT_FALSE(same(before[6].sent, host[6].sent));
    }
  });
}

// More neighbours than a warp has lanes, each measured.
TEST(CudaUpdateOfManyNeighbours, MeasuresEachOfThem) {
  for (const Wire wire : {Wire::int8, Wire::int4}) {
    std::vector<Memory> device;
    device.emplace_back(5001, Wire::fp32, wire, 40, 1);
    for (Edge& edge : device[0].edges) edge.my_exponent = edge.their_exponent, edge.measured = {};
    std::vector<Memory> host = device;
    step_both(starling_sgd, {SgdStep{.lr = 0.1f, .wd = 0}}, device, host);
    expect_same(device[0], host[0]);
    EXPECT_GT(host[0].edges[39].measured.largest, 0);
  }
}

TEST(CudaUpdateFlag, SaysWhetherAllIsFinite) {
  const float bad_values[] = {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN(),
                              7e4f};  // the last is not finite as fp16 alone
  for (const Wire format : {Wire::fp32, Wire::bf16}) {
    for (const Wire wire : {Wire::fp32, Wire::bf16, Wire::fp16, Wire::int8}) {
      for (const float bad : bad_values) {
        for (const std::size_t at : {0u, 1023u, 4099u}) {
          std::vector<Memory> device;
          for (const std::size_t n : {100u, 4100u}) device.emplace_back(n, format, wire, 1, 3);
          kernels::encode(&bad, 1, format, device[1].at(device[1].p, format) + bytes_of(format, at));
          std::vector<Memory> host = device;
          const bool finite =
              step_both(starling_sgd, std::vector(2, SgdStep{.lr = 0.01f, .wd = 0}), device, host);
          EXPECT_EQ(finite, bad == 7e4f && wire != Wire::fp16);
        }
      }
    }
  }
}

TEST(CudaUpdateWire, MayLieWhereMineLies) {
  std::vector<Memory> device;
  device.emplace_back(4500, Wire::fp32, Wire::bf16, 2, 1);
  device[0].edges[1].mine = device[0].edges[0].mine;
  std::vector<Memory> host = device;
  const auto aliased = [](Memory& memory) {
    memory.sent = memory.edges[0].mine;
    std::vector<Mix> mixes = memory.mixes();
    for (Mix& mix : mixes) mix.mine.values = memory.at(memory.sent, memory.wire);
    return mixes;
  };
  const SgdStep rule{.lr = 0.1f, .wd = 0.1f};
  Memory &d = device[0], &h = host[0];
  Table table;
  table.add(rule, aliased(d), d.parameters(), d.gradient(), {}, d.wire_block(), d.n);
  EXPECT_TRUE(launch(starling_sgd, table));
  EXPECT_TRUE(kernels::update(rule, aliased(h), h.parameters(), h.gradient(), {}, h.wire_block(), h.n));
  expect_same(d, h);
}

// With momentum and without, of a parameter and (the last) of none.
TEST(CudaRenew, IsThatOfTheProcessorToTheBit) {
  for (const Wire format : {Wire::fp32, Wire::bf16, Wire::fp16}) {
    std::vector<Memory> device;
    for (const std::size_t n : {1u, 3u, 131u, 4096u, 4097u, 1000u})
      device.emplace_back(n, format, Wire::fp32, 0, static_cast<std::uint32_t>(n));
    std::vector<Memory> host = device;
    const auto x = [](Memory& my) { return std::span(my.v).subspan(my.shift, my.n); };
    const auto x_tilde = [](Memory& my) { return std::span(my.b).subspan(my.shift, my.n); };
    Table table;
    for (std::size_t s = 0; s < device.size(); ++s) {
      const bool momentum = s != 3, renews = s != 5;
      const double eta_tau = s == 1 ? 0 : 0.3;
      const float scale = momentum ? 1 : 1.7f;
      Memory &d = device[s], &h = host[s];
      table.add(Renewal{renews ? d.parameters() : nullptr, d.m.data() + d.shift, x(d).data(),
                        momentum ? x_tilde(d).data() : nullptr, scale,
                        momentum ? momentum_share<float>(eta_tau) : 0, d.n, 0});
      if (momentum) mix_momentum(x(h), x_tilde(h), eta_tau);
      if (renews)
        best_kernels().renew(h.parameters(), h.m.data() + h.shift, x(h).data(),
                             momentum ? x_tilde(h).data() : nullptr, scale, h.n);
    }
    launch(starling_renew, table);
    for (std::size_t s = 0; s < device.size(); ++s) {
      SCOPED_TRACE(testing::Message() << name_of(format) << ", segment " << s);
      expect_same(device[s], host[s]);
    }
  }
}

// In one table, of the same memory: the momentum comes first.
TEST(CudaRenew, ComesBeforeUpdates) {
  std::vector<float> x(100), x_tilde(100);
  Table table;
  table.add(SgdStep{}, {}, x.data(), nullptr, {}, {}, x.size());
  table.add(Renewal{nullptr, nullptr, x.data(), x_tilde.data(), 0, 0.1f, x.size(), 0});
  std::vector<std::max_align_t> memory(table.bytes() / sizeof(std::max_align_t) + 1);
  const auto launches = table.write(reinterpret_cast<std::byte*>(memory.data()));
  ASSERT_EQ(launches.size(), 2u);
  EXPECT_EQ(launches[0].entry, kUpdateEntries.size() - 1);
}

}  // namespace
}  // namespace starling::kernels::cuda
