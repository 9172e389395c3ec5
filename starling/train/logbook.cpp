#include "starling/train/logbook.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/optim/options.h"

namespace starling {

Logbook::Logbook(const Recipe& recipe, const World& world, const Observer& observer, Metrics& metrics,
                 const RunLength& length)
    : log_(world.log),
      observer_(observer),
      metrics_(metrics),
      score_(task_of(recipe).score),
      asynchronous_(averages_in_pairs(make_options(recipe))),
      every_(recipe.log.every),
      batch_(recipe.train.batch * recipe.train.accumulate),
      rank_(world.rank),
      workers_(world.size),
      length_(length),
      step_(length.first_step),
      seconds_(length.first_seconds),
      seconds_at_line_(length.first_seconds) {
  if (recipe.log.tensorboard) {
    on_events([&] { events_.emplace(fmt::format("{}/tensorboard/worker-{}", recipe.run.out, rank_)); });
  }
}

void Logbook::on_events(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& failure) {
    log_(Level::warning, fmt::format("{}: the run goes on without it", failure.what()));
    events_.reset();
  }
}

void Logbook::with_events(const std::function<void(EventFile&)>& f) {
  if (events_) on_events([&] { f(*events_); });
}

void Logbook::add(const Step& step, const Statistics& now, std::int64_t done) {
  step_ = step.number;
  seconds_ += step.seconds;
  losses_ += step.loss;
  ++losses_counted_;
  if (observer_.progress) show_progress(now, done);
  if (step_ % every_ == 0 || done == length_.steps) write_line(step.lr, now);
}

void Logbook::add_choice(const ChosenTopology& chosen) {
  metrics_.write_chosen(chosen.name, chosen.why);
  if (observer_.says) observer_.says(chosen.why);
  with_events([&](EventFile& file) { file.write_text(step_, "mixing/topology", chosen.why); });
}

void Logbook::add_test(const AverageScore& test) {
  metrics_.write_test({.step = step_,
                       .seconds = seconds_,
                       .test_loss = test.score.loss,
                       .score_name = std::string(score_.name),
                       .score = test.score.value,
                       .consensus_distance = test.consensus_distance});
  const std::string tag = fmt::format("test/{}", score_.name);
  with_events([&](EventFile& file) {
    file.write(step_, {{tag, test.score.value},
                       {"test/loss", test.score.loss},
                       {"test/consensus_distance", test.consensus_distance}});
  });
}

double Logbook::waiting_share(const Statistics& now) const {
  return now.seconds_waiting / (seconds_ - length_.first_seconds);
}

double Logbook::epoch_at(std::int64_t step) const {
  return length_.begin_epochs + static_cast<double>(step - length_.begin) / length_.steps_per_epoch;
}

void Logbook::show_progress(const Statistics& now, std::int64_t done) const {
  const auto share = static_cast<double>(std::max<std::int64_t>(done, 1));
  observer_.progress({.step = done,
                      .steps = length_.steps,
                      .epoch = epoch_at(done),
                      .epochs = epoch_at(length_.steps),
                      .loss = losses_ / losses_counted_,
                      .samples_per_second = static_cast<double>(samples() * workers_) / seconds_,
                      .seconds_left = seconds_ / share * static_cast<double>(length_.steps - done),
                      .waiting_share = waiting_share(now)});
}

void Logbook::write_line(double lr, const Statistics& now) {
  loss_ = losses_ / losses_counted_;
  const double seconds = seconds_ - seconds_at_line_;
  const double waiting_share = (now.seconds_waiting - waited_) / seconds;
  std::optional<StepRecord::Gossip> gossip;
  if (asynchronous_)
    gossip = {.rate = now.rate, .distance = now.distance, .edges = now.edges, .questions = now.questions};
  metrics_.write({.rank = rank_,
                  .step = step_,
                  .epoch = epoch_at(step_),
                  .samples = samples(),
                  .seconds = seconds_,
                  .loss = loss_,
                  .lr = lr,
                  .waiting_share = waiting_share,
                  .bytes_sent = now.bytes_sent,
                  .round = now.round,
                  .membership = now.membership,
                  .joins = now.joins,
                  .blocks_aborted = now.aborted,
                  .blocks_jumped = now.jumped,
                  .mixed = now.mixed,
                  .gossip = gossip});
  write_events(lr, seconds, waiting_share, now);
  losses_ = 0;
  losses_counted_ = 0;
  waited_ = now.seconds_waiting;
  seconds_at_line_ = seconds_;
}

void Logbook::write_events(double lr, double seconds, double waiting_share, const Statistics& now) {
  with_events([&](EventFile& file) {
    if (asynchronous_) file.write(step_, {{"gossip/rate", now.rate}, {"gossip/distance", now.distance}});
    file.write(step_, {{"train/loss", loss_},
                       {"train/lr", lr},
                       {"train/samples_per_second", static_cast<double>(losses_counted_ * batch_) / seconds},
                       {"exchange/waiting_share", waiting_share},
                       {"exchange/bytes_sent", static_cast<double>(now.bytes_sent)}});
  });
}

}  // namespace starling
