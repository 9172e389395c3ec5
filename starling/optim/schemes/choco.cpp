// CHOCO-SGD: Koloskova, Stich & Jaggi 2019 (arXiv 1902.00340, 1907.09356). With an event trigger,
// SPARQ-SGD and SQuARM-SGD: Singh, Data, George & Diggavi 2019, 2021 (1910.14280, 2005.07041).
//
//   h_i = keep x_i - lr u(g_i)                    the local step of any rule
//   x^_i <- x^_i + C(h_i - x^_i)                  if |h_i - x^_i|^2 > trigger lr^2, else as it is
//   x_i <- h_i + gamma Sum_j W_ij (x^_j - x^_i)   = h_i + gamma (s_i - x^_i), s_i = Sum_j W_ij x^_j
//
//   keep   AdamW's weight decay, else 1
//   C      the ceil(n / one_in) largest by magnitude of n values
//
// SPARQ-SGD is this after Options::every local steps of SGD, and SQuARM-SGD of SGD with Nesterov's
// momentum. |.|^2 is over all values of the worker, and lr is that of each parameter group. A
// worker below the threshold sends empty blocks. With trigger 0 it always sends.
//
// Values that C leaves out stay in h - x^ until they are sent. Top-k needs this memory; random-k
// (kernels/mask.h) does not. x^ begins as x, which is then the same on all workers.
//
// A worker sends its x^ to each neighbour in a separate exchange, which commits or aborts at both
// ends alike. So each edge has its own pair of copies, x^_ij and x^_ji, and both of its ends keep
// both (copies.h): 2 floats per value and neighbour. If a swap commits, both ends take it and mix
// the edge with the same two copies, and so in opposite directions to the bit. If it aborts, no end
// takes it. If it was in doubt, the end that learns of it later mixes it then, before any newer
// swap. So aborts keep the sum of all x. Without faults, all x^_ij of a worker equal its x^_i. The
// trigger asks for the farthest.
//
// An edge needs its copies in the next round: so there is one round, with a symmetric graph.
#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "starling/optim/schemes/copies.h"

namespace starling {
namespace {

double gamma_of(const Options& options) {
  const double given = SchemeSettings(options.scheme).number("gamma");
  return given == 0 ? default_gamma(options.one_in) : given;
}

class Choco final : public Scheme {
 public:
  explicit Choco(const SchemeParts& parts)
      : Scheme(parts),
        gamma_(gamma_of(options_)),
        trigger_(SchemeSettings(options_.scheme).number("trigger")),
        copies_(blocks_, world_.rank, {static_cast<std::uint32_t>(options_.one_in)}) {}

  void attach(const Connection& connection) override {
    Scheme::attach(connection);
    copies_.attach(connection.schedule.rounds.front());
  }
  void restart() override { copies_.restart(); }
  void begin() override { copies_.agree(exchange()); }
  void step() override;
  void state(StateVisitor& visitor) override { copies_.state(visitor); }

 private:
  bool adapt(Block& block, std::optional<float> scale);
  bool fires() const;
  void send(Block& block, bool finite, bool values);

  const double gamma_, trigger_;
  Copies copies_;
};

void Choco::step() {
  const auto scale = local_.scale();
  const bool always = trigger_ == 0;  // then a block is on its way while the next one is updated
  std::vector<bool> finite;
  for (Block& block : blocks_) {
    finite.push_back(adapt(block, scale));
    if (always) send(block, finite.back(), true);
  }
  if (!always) {
    const bool values = fires();
    for (std::size_t b = 0; b < blocks_.size(); ++b) send(blocks_[b], finite[b], values);
  }
  for (Block& block : blocks_) copies_.combine(block, finish(exchange(), block), gamma_);
}

// The rule's pass. Then the parameters are read to the host. Returns whether they are finite.
bool Choco::adapt(Block& block, std::optional<float> scale) {
  const auto finite = std::make_shared<bool>(true);
  update(block, local_.rule(block), {}, {}, scale, [finite](bool all) { *finite = all; });
  settle({&block, 1});
  copies_.read(block);
  return *finite;
}

// Whether some neighbour's copy is too far from x.
bool Choco::fires() const {
  std::vector<double> far;  // by neighbour: |h - x^|^2 / lr^2
  for (const Block& block : blocks_) {
    const std::vector<double> apart = copies_.distances(block);
    const double lr = local_.lr(block);
    far.resize(apart.size());
    for (std::size_t e = 0; e < far.size(); ++e) far[e] += apart[e] / (lr * lr);
  }
  // 0 / 0 fires too.
  return !std::ranges::all_of(far, [&](double distance) { return distance <= trigger_; });
}

void Choco::send(Block& block, bool finite, bool values) {
  const Outgoing outgoing = exchange().outgoing(block.index);
  if (!values) {
    exchange().leave_empty(block.index);
  } else if (finite && outgoing.values != nullptr) {
    copies_.write(block, outgoing.values);
  }
  start(exchange(), block, finite);
}

constexpr SchemeOption kOptions[] = {
    {.name = "gamma",
     .standard = 0.0,
     .range = between(0, 1),
     .meaning = "step of the workers towards each other, gamma in x += gamma Sum_j W_ij (x^_j - x^_i); too "
                "large a step drives them apart; 0: 1.6 / one_in, at most 1"},
    {.name = "trigger",
     .standard = 0.0,
     .range = at_least(0),
     .meaning = "a worker sends only if (x - x^)^2, summed over its parameters x, is above trigger lr^2; x^ "
                "is what its neighbours know of x; 0: it always sends"}};
constexpr auto kRefused = all_but_fp32("its values travel as they are, with their indices");

}  // namespace

extern constinit const SchemeInfo scheme_choco{
    .name = "choco",
    .summary = "CHOCO-SGD: atc by top-k, with a memory of what was not sent; SQuARM-SGD with a trigger",
    .paper = "arXiv 1902.00340",
    .traits = {.path = Path::inside,
               .edges = EdgeKind::lasting,
               .contents = {.chooser = Chooser::sender, .may_be_empty = true},
               .refused_wires = kRefused,
               .own_rule = "it sends what changed in a rule's pass",
               .on_host = true,
               .local_steps = true,
               .takes_outer = true,
               .kept_per_neighbour = 2,
               .at_a_join = "the copies of x begin anew"},
    .advice = {.good_for = "links too slow even for int8: few values, with a memory of the others",
               .topology = "ring"},
    .options = kOptions,
    .make = make<Choco>,
};

}  // namespace starling
