// DeMo: Peng, Quesnelle & Kingma 2024 (arXiv 2411.19870). Momentum stays with each worker. The
// largest coefficients of its cosine transform are sent.
//
//   d_i  <- beta d_i + T g_i(x)          g: the gradient
//   q_i   = top-k(d_i),  d_i <- d_i - q_i
//   y     = sign(T^-1 1/n Sum_j q_j)     the same for all workers; the rule reads it from .grad
//   x    <- x - lr u(y)                  SGD in the paper
//
//   T       the orthonormal cosine transform of each tile of a parameter (cosines.h)
//   top-k   the largest one in Options::one_in of each tile (top_k_message.h); with 1 all, and T=1
//   beta    "momentum_decay";  sign: "signs", else y is the mean itself
//
// All workers must take the same step, so each sends to all others: the rounds are those of the
// complete graph. Equal sums have equal bits (top_k_exchange.h), and so do their transforms on
// machines of one kind. After a lost exchange a worker has other signs, and makes another step. A
// sample of x, one value in 8 one_in, brings workers together again: within 8 one_in steps without
// a loss. A gradient that is not finite counts as 0.
//
// Verified against the authors' code (bloc97/DeMo at 0e481453, demo.py). There d holds values, and
// T is applied to it in each step: the same, since T is linear. They divide a coefficient's sum by
// the workers that have sent it; here by n. They add lr g to the momentum; here g, which has the
// same signs while lr is constant. Their 32 of 64 x 64 coefficients are one_in = 128.
#include <string_view>
#include <utility>
#include <vector>

#include "starling/core/error.h"
#include "starling/optim/finite.h"
#include "starling/optim/schemes/cosines.h"
#include "starling/optim/schemes/scheme.h"
#include "starling/optim/schemes/top_k_exchange.h"
#include "starling/optim/schemes/tracked.h"
#include "starling/optim/schemes/vectors.h"
#include "starling/topology/schedules.h"

namespace starling {
namespace {

std::vector<TopKMessage::Part> parts_of(const Block& block) {
  std::vector<TopKMessage::Part> parts;
  for (const Tiles& t : tiles_of(block)) parts.push_back({t.values(), t.h * t.w});
  return parts;
}

class Demo final : public Scheme {
 public:
  explicit Demo(const SchemeParts& parts)
      : Scheme(parts),
        decay_(SchemeSettings(options_.scheme).number("momentum_decay")),
        signs_(SchemeSettings(options_.scheme).text("signs") == "on"),
        messages_(world_, options_.one_in, false, parts_of) {}

  void attach(const Connection& connection) override {
    Scheme::attach(connection);
    momentum_.attach(blocks_);
    messages_.attach(connection, blocks_);
  }
  void restart() override { momentum_.zero(), messages_.restart(); }
  void step() override {
    const bool before = std::exchange(finite_, true);
    for (Block& block : blocks_) send(block);
    if (before && !finite_) world_.log(Level::warning, "the gradient is not finite: it counts as 0");
    // After all gradients were read, since writing may replace a .grad of another memory order.
    for (Block& block : blocks_) take(block);
    local_.all();
  }
  void state(StateVisitor& visitor) override {
    momentum_.state(visitor, sends_all() ? "momentum" : "coefficients");
    if (!sends_all()) messages_.state(visitor);
  }

 private:
  bool sends_all() const { return options_.one_in == 1; }
  void send(Block& block) {
    const at::Tensor m = momentum_.of(block), g = room_on_host(block).zero_(), x = room_on_host(block);
    std::vector<Moved> gradients;
    for (const Segment& s : block.segments) {
      at::Tensor keep;
      if (s.gradient(keep) != nullptr)
        gradients.push_back({stretch(keep, s.begin, s.length), g.narrow(0, s.offset, s.length)});
    }
    copy_to_host(block, gradients);
    for (const Moved& own : gradients)
      if (!is_finite(own.here)) own.here.zero_(), finite_ = false;
    m.mul_(decay_).add_(sends_all() ? g : cosine_transform(block, g));
    read_on_host(block, x);
    messages_.send(block, m, x, is_finite(x));
  }

  void take(Block& block) {
    const at::Tensor sum = room_on_host(block).zero_(), x = room_on_host(block);
    read_on_host(block, x);
    messages_.take(block, 1, sum, x);
    set_from_host(block, x);
    const at::Tensor y = sends_all() ? sum : inverse_cosine_transform(block, sum);
    if (signs_) y.sign_();
    for (const Segment& s : block.segments) write_gradient(s, y);
  }

  const double decay_;
  const bool signs_;
  TopKExchange messages_;
  Vectors momentum_{Fresh::zero, Where::host};
  bool finite_ = true;  // the last gradient was
};

constexpr std::string_view kSwitch[]{"on", "off"};
constexpr SchemeOption kOptions[] = {
    {.name = "momentum_decay",
     .standard = 0.999,
     .range = from_below(0, 1),
     .meaning = "share of the momentum that was not sent that stays in each step"},
    {.name = "signs",
     .standard = "on",
     .choices = kSwitch,
     .meaning = "on: the rule gets the signs of the averaged values, and clip must be 0; off: the values"}};
constexpr auto kRefused = all_but_fp32("its few coefficients travel as they are");

}  // namespace

extern constinit const SchemeInfo scheme_demo{
    .name = "demo",
    .summary = "DeMo: local momentum, and signs of the largest coefficients of its cosine transform",
    .paper = "arXiv 2411.19870",
    .traits = {.path = Path::inside,
               .edges = EdgeKind::own,
               .rounds = [](int workers) { return make_schedule("complete", workers); },
               .contents = {.chooser = Chooser::sender},
               .wire_values =
                   [](const Block& block, const Schedule&, const Options& options) {
                     return TopKMessage(parts_of(block), options.one_in, false).size();
                   },
               .refused_wires = kRefused,
               .on_host = true,
               .exact = true,
               .sums_gradients = true,
               .equal = true,
               .kept = 1,
               .at_a_join = "what was not sent yet is dropped"},
    .advice = {.good_for = "a link too slow for gradients, and workers that stay equal in each step",
               .rule = "sgd"},
    .options = kOptions,
    .make = make<Demo>,
    .check =
        [](const Options& options, const SchemeSettings& settings, const Schedule&) {
          if (options.clip > 0 && settings.text("signs") == "on")
            throw UsageError("scheme \"demo\" needs clip = 0, or signs = \"off\": it would scale the signs");
        },
};

}  // namespace starling
