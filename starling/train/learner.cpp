#include "starling/train/learner.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <ATen/ops/cross_entropy_loss.h>
#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/random.h"

namespace starling {

ImageSet training_images(const Recipe& recipe, const ImageSet& all) {
  const std::int64_t n = recipe.data.limit > 0 ? std::min(recipe.data.limit, all.size()) : all.size();
  return {all.images.narrow(0, 0, n), all.labels.narrow(0, 0, n)};
}

Learner::Learner(const Recipe& recipe, ImageSet images, int rank, int workers)
    : recipe_(recipe),
      images_(std::move(images)),
      rank_(rank),
      seed_(static_cast<std::uint64_t>(recipe.run.seed)),
      sampler_(images_.size(), recipe.train.batch, rank, workers, seed_,
               recipe.data.split == "whole" ? Split::whole : Split::split),
      model_(make_classifier(recipe.model.name, recipe.model.width, recipe.model.dtype, seed_)) {}

double Learner::steps_per_epoch() const {
  return static_cast<double>(sampler_.batches_per_epoch()) / static_cast<double>(recipe_.train.accumulate);
}

std::int64_t Learner::steps() const {
  if (recipe_.run.steps > 0) return recipe_.run.steps;
  return std::max<std::int64_t>(1, std::llround(recipe_.run.epochs * steps_per_epoch()));
}

double Learner::gradient(std::int64_t step, Optimizer& optimizer) {
  Timeline* const timeline = optimizer.world().timeline.get();
  const std::int64_t passes = recipe_.train.accumulate, per_epoch = sampler_.batches_per_epoch();
  double step_loss = 0;
  for (std::int64_t pass = step * passes; pass < (step + 1) * passes; ++pass) {
    const std::uint64_t flips = random_bits({seed_, static_cast<std::uint64_t>(pass / per_epoch)});
    const Batch batch = [&] {
      const Timeline::Scope span(timeline, {.name = "data"});
      return make_batch(images_, sampler_.batch(pass),
                        recipe_.data.flip ? std::optional(flips) : std::nullopt);
    }();
    at::Tensor loss;
    {
      const Timeline::Scope span(timeline, {.name = "forward"});
      loss =
          at::cross_entropy_loss(model_->forward(batch.images), batch.labels) / static_cast<double>(passes);
    }
    {
      const Timeline::Scope span(timeline, {.name = "backward"});
      std::optional<NoSync> accumulating;
      if (pass + 1 < (step + 1) * passes) accumulating.emplace(optimizer);
      (loss * optimizer.loss_scale()).backward();
    }
    step_loss += loss.item<double>();
  }
  if (!std::isfinite(step_loss)) {
    throw Error(fmt::format("rank {}: step {}: the loss is {}; a lower optimizer.lr or train.clip may help",
                            rank_, step + 1, step_loss));
  }
  return step_loss;
}

}  // namespace starling
