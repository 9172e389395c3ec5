// CHOCO-SGD: Koloskova, Stich & Jaggi 2019 (arXiv 1902.00340). For deep learning: Koloskova et al.
// 2020 (arXiv 1907.09356).
//
//   h_i = keep x_i - lr u(g_i)                    the local step of any rule
//   x^_i <- x^_i + C(h_i - x^_i)
//   x_i <- h_i + gamma Sum_j W_ij (x^_j - x^_i)   = h_i + gamma (s_i - x^_i), s_i = Sum_j W_ij x^_j
//
//   keep   AdamW's weight decay, else 1
//   C      the ceil(n / one_in) largest by magnitude of n values
//
// Values that C leaves out stay in h - x^ until they are sent. Top-k needs this memory; random-k
// (kernels/mask.h) does not. x^ begins as x, which is then the same on all workers.
//
// A worker sends its x^ to each neighbour in a separate exchange, which commits or aborts at both
// ends alike. So each edge has its own pair of copies, x^_ij and x^_ji, and both of its ends keep
// both (exchange/replicas.h). They take 2 floats per value and neighbour; CHOCO without faults
// needs 2 per value. If a swap commits, both ends take it and mix the edge with the same two
// copies, and so in opposite directions to the bit. If it aborts, neither end takes it. If it was
// in doubt, the end that learns of it later takes and mixes it then, before any newer swap. So
// aborts keep the sum of all x. Without faults, all x^_ij of a worker equal its x^_i.
//
// An edge must know its copies from one round to the next. So the schedule has one round, with a
// symmetric graph. As with ATC, the exchange is inside the step.
#include <algorithm>
#include <bit>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "starling/core/crc32c.h"
#include "starling/exchange/replicas.h"
#include "starling/optim/schemes/scheme.h"

namespace starling {
namespace {

std::vector<std::span<const float>> pieces_of(const Block& block) {
  std::vector<std::span<const float>> pieces;
  for (const Segment& s : block.segments) {
    const kernels::Parameters x = s.values();
    const auto* const values = s.format == Wire::fp32 ? static_cast<const float*>(x.values) : x.master;
    pieces.emplace_back(values, static_cast<std::size_t>(s.length));
  }
  return pieces;
}

double gamma_of(const Options& options) {
  const double given = SchemeSettings(options.scheme).number("gamma");
  return given == 0 ? default_gamma(options.one_in) : given;
}

class Choco final : public Scheme {
 public:
  explicit Choco(const SchemeParts& parts)
      : Scheme(parts), top_{static_cast<std::uint32_t>(options_.one_in)}, gamma_(gamma_of(options_)) {}

  void attach(const Connection& connection) override;
  void restart() override {
    replicas_.clear();
    make_replicas();
    fresh_ = false;
  }
  // Collective, except the first one for new blocks. If the two ends of an edge have different
  // copies, the edge begins again from one worker's parameters. Copies differ if a swap was in
  // doubt when the state was saved, or when an exchange ended.
  void begin() override {
    if (std::exchange(fresh_, false)) return;
    for (auto edges = differing(); !edges.empty(); edges = differing()) begin_again(edges);
  }
  void step() override;
  void state(StateVisitor& visitor) override;

 private:
  Replicas& replicas(const Block& block) { return replicas_[static_cast<std::size_t>(block.index)]; }
  void make_replicas();  // of the blocks that have none yet
  void combine(Block& block);
  std::vector<std::pair<int, int>> differing();
  void begin_again(const std::vector<std::pair<int, int>>& edges);

  const TopK top_;
  const double gamma_;
  Graph graph_{1};
  std::vector<Replicas> replicas_;  // by block
  bool fresh_ = true;               // all copies are new
  std::vector<std::uint32_t> room_;
};

void Choco::step() {
  const auto scale = local_.scale();
  for (Block& block : blocks_) {
    const bool finite = update(block, local_.rule(block), {}, {}, scale);
    const Outgoing outgoing = exchange().outgoing(block.index);
    if (finite && outgoing.values != nullptr)
      replicas(block).write(pieces_of(block), top_, outgoing.values, room_);
    start(exchange(), block, finite);
  }
  for (Block& block : blocks_) combine(block);
}

void Choco::combine(Block& block) {
  const auto finished = finish(exchange(), block);
  std::vector<Arrival> swaps(finished.begin(), finished.end());
  std::ranges::stable_sort(swaps, {}, &Arrival::round);  // a mended swap is older than this round's
  for (auto first = swaps.begin(); first != swaps.end();) {
    const std::uint64_t round = first->round;
    std::vector<Arrival> mixes;
    for (; first != swaps.end() && first->round == round; ++first)
      mixes.push_back(replicas(block).take(*first, top_, gamma_));
    mix(block, mixes, {});
  }
}

void Choco::attach(const Connection& connection) {
  Scheme::attach(connection);
  graph_ = connection.schedule.rounds.front();
  fresh_ = replicas_.empty();
  make_replicas();
}

void Choco::make_replicas() {
  with_masters(blocks_);
  std::vector<int> neighbours;
  for (const Neighbour& j : graph_.neighbours[static_cast<std::size_t>(world_.rank)])
    neighbours.push_back(j.rank);
  for (std::size_t b = replicas_.size(); b < blocks_.size(); ++b)
    replicas_.emplace_back().begin(neighbours, pieces_of(blocks_[b]));
}

void Choco::state(StateVisitor& visitor) {
  for (std::size_t e = 0; e < replicas_.front().edges.size(); ++e) {
    const auto copies = [&](std::vector<float> Replicas::Edge::* which) {
      return [this, e, which](Block& block, const std::function<void(const at::Tensor&)>& f) {
        std::vector<float>& all = replicas(block).edges[e].*which;
        f(at::from_blob(all.data(), {block.length}, at::kFloat));
      };
    };
    const int rank = replicas_.front().edges[e].rank;
    visitor.values(fmt::format("published.{}", rank), Fresh::parameter, copies(&Replicas::Edge::mine));
    visitor.values(fmt::format("replica.{}", rank), Fresh::parameter, copies(&Replicas::Edge::theirs));
  }
}

// All workers' edges whose two ends differ, each once, the lower rank first. The same on all
// workers.
std::vector<std::pair<int, int>> Choco::differing() {
  std::vector<std::int64_t> checksums;  // for each (i, j): i's, then j's
  std::vector<std::pair<int, int>> edges;
  const auto checksum = [&](int other) {
    std::uint32_t sum = 0;
    for (const Block& block : blocks_) {
      const auto& edge = *std::ranges::find(replicas(block).edges, other, &Replicas::Edge::rank);
      const bool lower = world_.rank < other;
      sum = crc32c(std::as_bytes(std::span(lower ? edge.mine : edge.theirs)), sum);
      sum = crc32c(std::as_bytes(std::span(lower ? edge.theirs : edge.mine)), sum);
    }
    return std::int64_t{sum} + 1;
  };
  for (int i = 0; i < graph_.workers(); ++i) {
    for (const Neighbour& j : graph_.neighbours[static_cast<std::size_t>(i)]) {
      if (j.rank < i) continue;
      edges.emplace_back(i, j.rank);
      checksums.push_back(i == world_.rank ? checksum(j.rank) : 0);
      checksums.push_back(j.rank == world_.rank ? checksum(i) : 0);
    }
  }
  exchange().maximum(checksums);
  std::vector<std::pair<int, int>> differ;
  for (std::size_t e = 0; e < edges.size(); ++e) {
    // An end that is gone is unknown, and does not matter.
    const bool both = checksums[2 * e] != 0 && checksums[2 * e + 1] != 0;
    if (both && checksums[2 * e] != checksums[2 * e + 1]) differ.push_back(edges[e]);
  }
  return differ;
}

// Sets all copies of these edges to the parameters of the first edge's first end. All other workers
// contribute 0, so the maximum is that worker's values, or 0 if it has died.
void Choco::begin_again(const std::vector<std::pair<int, int>>& edges) {
  const int from = edges.front().first;
  for (Block& block : blocks_) {
    std::vector<std::int64_t> values(static_cast<std::size_t>(block.length));
    if (world_.rank == from) {
      std::size_t at = 0;
      for (const auto piece : pieces_of(block)) {
        for (const float value : piece) values[at++] = std::int64_t{std::bit_cast<std::uint32_t>(value)} + 1;
      }
    }
    exchange().maximum(values);
    if (std::ranges::find(values, 0) != values.end()) return;
    for (const auto& [i, j] : edges) {
      if (i != world_.rank && j != world_.rank) continue;
      auto& edge = *std::ranges::find(replicas(block).edges, i == world_.rank ? j : i, &Replicas::Edge::rank);
      for (std::size_t c = 0; c < values.size(); ++c)
        edge.mine[c] = std::bit_cast<float>(static_cast<std::uint32_t>(values[c] - 1));
      edge.theirs = edge.mine;
    }
  }
}

constexpr SchemeOption kOptions[] = {{
    .name = "gamma",
    .standard = 0.0,
    .range = between(0, 1),
    .meaning = "step of the workers towards each other, gamma in x += gamma Sum_j W_ij (x^_j - x^_i); too "
               "large a step drives them apart; 0: 1.6 / one_in, at most 1",
}};
constexpr auto kRefused = all_but_fp32("its values travel as they are, with their indices");

}  // namespace

extern constinit const SchemeInfo scheme_choco{
    .name = "choco",
    .summary = "CHOCO-SGD: atc by top-k, with a memory of what was not sent",
    .paper = "arXiv 1902.00340",
    .traits = {.path = Path::inside,
               .edges = EdgeKind::lasting,
               .contents = {.chooser = Chooser::sender},
               .refused_wires = kRefused,
               .own_rule = "it sends what changed in a rule's pass",
               .local_steps = true,
               .takes_outer = true,
               .kept_per_neighbour = 2},
    .advice = {.good_for = "links too slow even for int8: few values, with a memory of the others",
               .topology = "ring"},
    .options = kOptions,
    .make = make<Choco>,
};

}  // namespace starling
