// The baseline: the gradients are averaged over all workers, then every worker takes the same local
// step (optim/gradient_average.h).
//
//   g <- 1/n Sum_j g_j,  then  x <- x - lr u(g)
#include <optional>

#include "starling/optim/gradient_average.h"
#include "starling/optim/schemes/scheme.h"

namespace starling {
namespace {

class AllReduce final : public Scheme {
 public:
  explicit AllReduce(const SchemeParts& parts) : Scheme(parts) {}

  void attach(const Connection& connection) override {
    Scheme::attach(connection);
    average_.emplace(options_.scheme.name, blocks_, *connection.collectives, world_.size);
  }
  void detach() override {
    average_.reset();
    Scheme::detach();
  }

  void step() override {
    average_->step([this] { local_.all(); });
  }

  void set_sync(bool sync) override {
    if (average_) average_->set_sync(sync);
  }
  ExchangeStatistics counted() const override {
    ExchangeStatistics all;
    if (!average_) return all;
    all.bytes_sent = all.payload_sent = average_->bytes_sent();
    all.seconds_waiting = average_->seconds_waiting();
    return all;
  }

 private:
  std::optional<GradientAverage> average_;
};

constexpr std::string_view kSendsGradients = "it sends gradients, not parameters";
constexpr auto kRefused = all_but_fp32(kSendsGradients);

}  // namespace

extern constinit const SchemeInfo scheme_all_reduce{
    .name = "all-reduce",
    .summary = "the baseline: gradients are averaged over all workers during backward()",
    .paper = "arXiv 2006.15704",
    .traits = {.path = Path::gradients,
               .edges = EdgeKind::none,
               .rounds = without_neighbours,
               .refused_wires = kRefused,
               .all_values = kSendsGradients,
               .exact = true,
               .equal = true,
               .kept = 1},
    .advice = {.good_for = "a baseline: all workers stay equal",
               .when_one_dies = "the run ends with an error",
               .evidence = {{{"accuracy beside cta", "docs/results.md#accuracy"},
                             {"time of a step beside DDP", "docs/results.md#time-of-a-step"}}}},
    .make = make<AllReduce>,
};

}  // namespace starling
