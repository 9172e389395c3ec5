// The parts shared by the tasks that sort images into classes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "starling/data/class_split.h"
#include "starling/models/classifier.h"
#include "starling/train/task.h"

namespace starling {

inline constexpr ScoreInfo kAccuracy{.name = "accuracy", .higher_is_better = true, .percent = true};

// A batch is images and their labels. The training set is split as data.split says.
class ClassificationTask : public Task {
 public:
  torch::nn::Module& model() override { return *network_; }
  const Deal& deal() const override { return sampler_.deal(); }
  at::Tensor loss(const Batch& batch) override;
  Score score(const Tally& whole) const override { return accuracy(whole, whole.examples); }
  std::vector<std::vector<std::int64_t>> class_counts() const override;

 protected:
  ClassificationTask(ClassSet set, const Recipe& recipe, const Drawer& who,
                     std::shared_ptr<Classifier> network, double label_smoothing = 0);

  // float [n, classes], of a batch's images on the device of the network.
  virtual at::Tensor logits(const at::Tensor& images) { return network_->forward(images); }
  // Adds a test batch: the right answers to counts[0], and the sum of the cross entropies to loss.
  void add_answers(Tally& tally, const Batch& batch);
  // The share of right answers, and the mean loss, of so many examples.
  static Score accuracy(const Tally& whole, std::int64_t examples);

 private:
  const ClassSet set_;
  const ClassSplit split_;
  const std::int64_t batch_;
  const int workers_;
  const double label_smoothing_;

 protected:
  const std::uint64_t seed_;
  Sampler sampler_;
  const std::shared_ptr<Classifier> network_;
};

// first, first + 1, .., last - 1; nothing if last <= first.
std::vector<std::int64_t> numbers_of(std::int64_t first, std::int64_t last);

}  // namespace starling
