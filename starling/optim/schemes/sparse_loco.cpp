// SparseLoCo: Sarfi, Therien, Lidin & Belilovsky 2025 (arXiv 2508.15706).
//
//   D_i      <- theta_i - x_i            x_i: after H local steps from theta_i (Options::every)
//   e_i      <- beta e_i + D_i           what was not sent takes the part of an outer momentum
//   q_i       = Q(top-k(e_i)),  e_i <- e_i - q_i
//   theta_i  <- theta_i - alpha Sum_j W_ij q_j,  x_i <- theta_i
//
//   top-k    the largest one in Options::one_in of each chunk (top_k_message.h)
//   Q        2 bits for each value, or none ("sent_values")
//   alpha    Options::outer_lr, 1 in the paper;  beta: "error_decay"
//
// Over the complete graph all theta have the same bits, and this is the paper. With one_in = 1 no
// error is left. Then y = theta - alpha D is sent and mixed, as by ATC after H local steps: over
// the complete graph DiLoCo with outer SGD.
//
// Over other graphs, and after a lost exchange, theta differs. So a message has a sample of theta
// too, one value in 8 one_in, each in turn: theta_i <- theta_i + Sum_j W_ij (theta_j - theta_i). If
// an exchange is lost, each end takes its own q in place of the other's (top_k_exchange.h). So what
// e has given is not lost, and the sum of all theta is kept up to rounding.
//
// Verified against summaries of the paper, and its code in tplr-ai/templar (c2397ac5) and
// CCLoco: beta 0.95, alpha 1, 64 of 4096. The code divides a value's sum by the workers that have
// sent it, the paper by all, as here. Its chunks of a matrix are squares, not consecutive values.
#include <string_view>
#include <vector>

#include "starling/optim/finite.h"
#include "starling/optim/schemes/scheme.h"
#include "starling/optim/schemes/top_k_exchange.h"
#include "starling/optim/schemes/vectors.h"
#include "starling/topology/schedules.h"

namespace starling {
namespace {

bool sends_levels(const Options& options) {
  return SchemeSettings(options.scheme).text("sent_values") == "2-bit";
}

std::vector<TopKMessage::Part> parts_of(const Block& block) {
  std::vector<TopKMessage::Part> parts;
  for (const Segment& s : block.segments) parts.push_back({.length = s.length});
  return parts;
}

std::size_t wire_values(const Block& block, const Schedule&, const Options& options) {
  if (options.one_in == 1) return static_cast<std::size_t>(block.length);
  return TopKMessage(parts_of(block), options.one_in, sends_levels(options)).size();
}

class SparseLoco final : public Scheme {
 public:
  explicit SparseLoco(const SchemeParts& parts)
      : Scheme(parts),
        decay_(SchemeSettings(options_.scheme).number("error_decay")),
        few_(world_, options_.one_in, sends_levels(options_), parts_of) {}

  void attach(const Connection& connection) override {
    Scheme::attach(connection);
    theta_.attach(blocks_);
    error_.attach(blocks_);
    few_.attach(connection, blocks_);
  }
  void restart() override {
    take_mean();
    error_.zero(), few_.restart();
  }
  void take_mean() override {
    for (Block& block : blocks_) theta_.copy(block);
  }
  void step() override {
    local_.all();
    for (Block& block : blocks_) sends_all() ? send_all(block) : send_few(block);
    for (Block& block : blocks_) sends_all() ? take_all(block) : take_few(block);
  }
  void state(StateVisitor& visitor) override {
    theta_.state(visitor, "theta");
    error_.state(visitor, "error");
    if (!sends_all()) few_.state(visitor);
  }

 private:
  bool sends_all() const { return options_.one_in == 1; }

  void send_all(Block& block) {
    theta_.less_parameters(block);
    mix(block, {{theta_.plus(block, static_cast<float>(1 - options_.outer_lr))}}, {});  // x <- y
    mix_and_send(exchange(), block, {});
  }
  void take_all(Block& block) {
    mix(block, finish(exchange(), block), {});
    theta_.copy(block);
  }

  void send_few(Block& block) {
    const at::Tensor &theta = theta_.of(block), &error = error_.of(block);
    const at::Tensor x = room_on_host(block);
    read_on_host(block, x);
    x.neg_().add_(theta).add_(error, decay_);
    const bool finite = is_finite(x);
    if (finite) error.copy_(x);
    few_.send(block, error, theta, finite);
  }
  void take_few(Block& block) {
    few_.take(block, static_cast<float>(-options_.outer_lr), theta_.of(block), theta_.of(block));
    set_from_host(block, theta_.of(block));
  }

  const double decay_;
  TopKExchange few_;
  const Where where_ = sends_all() ? Where::device : Where::host;  // TopKExchange works on the host
  Vectors theta_{Fresh::parameter, where_}, error_{Fresh::zero, where_};
};

constexpr std::string_view kSentValues[]{"2-bit", "fp32"};
constexpr SchemeOption kOptions[] = {
    {.name = "error_decay",
     .standard = 0.95,
     .range = between(0, 1),
     .meaning = "share of what was not sent that counts in the next exchange; 1: nothing is forgotten"},
    {.name = "sent_values",
     .standard = "2-bit",
     .choices = kSentValues,
     .meaning =
         "how the chosen values are sent with one_in above 1; 2-bit: each as one of four levels of its "
         "parameter; fp32: as they are"}};
constexpr auto kRefused = all_but_fp32("its few values have a format of their own");

}  // namespace

extern constinit const SchemeInfo scheme_sparse_loco{
    .name = "sparse-loco",
    .summary =
        "SparseLoCo: top-k of what local steps have changed, with 2 bits a value and a memory of the rest",
    .paper = "arXiv 2508.15706",
    .traits = {.path = Path::inside,
               .contents = {.chooser = Chooser::sender},
               .wire_values = wire_values,
               .refused_wires = kRefused,
               .on_host = true,
               .local_steps = true,
               .outer_options = 1,
               .kept = 2,
               .at_a_join = "what was not sent yet is dropped"},
    .advice = {.good_for = "links a thousand times too slow: few values, after many local steps",
               .topology = "complete"},
    .options = kOptions,
    .make = make<SparseLoco>,
    .check = [](const Options&, const SchemeSettings&,
                const Schedule& schedule) { check_symmetric_rounds(schedule, "scheme \"sparse-loco\""); },
};

}  // namespace starling
