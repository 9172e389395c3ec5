// A Rule as the options of a torch parameter group, so that torch's learning-rate schedulers can
// set its lr.
#include <memory>

#include "starling/core/error.h"
#include "starling/optim/optimizer.h"
#include "starling/optim/rule_step.h"

namespace starling {
namespace {

class RuleOptions final : public torch::optim::OptimizerCloneableOptions<RuleOptions> {
 public:
  explicit RuleOptions(Rule rule) : rule_(rule) { check_rule(rule_); }

  double get_lr() const override {
    return std::visit([](const auto& o) { return o.lr; }, rule_);
  }
  void set_lr(double lr) override {
    Rule changed = rule_;
    std::visit([lr](auto& o) { o.lr = lr; }, changed);
    check_rule(changed);
    rule_ = changed;
  }

  Rule& rule() { return rule_; }
  const Rule& rule() const { return rule_; }

 private:
  Rule rule_;
};

}  // namespace

std::unique_ptr<torch::optim::OptimizerOptions> rule_options(Rule rule) {
  return std::make_unique<RuleOptions>(rule);
}

Rule& rule_of(torch::optim::OptimizerParamGroup& group) {
  auto* options = group.has_options() ? dynamic_cast<RuleOptions*>(&group.options()) : nullptr;
  if (!options) {
    throw UsageError(
        "a parameter group has no starling rule: make it as OptimizerParamGroup(parameters, "
        "starling::rule_options(starling::AdamW{...})), or without options");
  }
  return options->rule();
}

bool takes_whole(const torch::optim::OptimizerParamGroup& group, const at::Tensor& parameter) {
  if (!group.has_options()) return false;
  const auto* const options = dynamic_cast<const RuleOptions*>(&group.options());
  return options != nullptr && takes_whole(options->rule(), parameter);
}

}  // namespace starling
