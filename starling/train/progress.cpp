#include "starling/train/progress.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace starling {

namespace {

std::string duration(double seconds) {
  const auto s = std::llround(std::min(seconds, 1e9));
  if (s < 3600) return fmt::format("{}:{:02}", s / 60, s % 60);
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

}  // namespace

std::string progress_text(const Progress& p) {
  return fmt::format(
      "step {}/{}  epoch {:.2f}/{:.4g}  loss {:.4f}  {:.0f} samples/s  {} left  rank 0 waits {:.0f} %",
      p.step, p.steps, p.epoch, p.epochs, p.loss, p.samples_per_second, duration(p.seconds_left),
      100 * p.waiting_share);
}

std::string shortened(const std::string& text, int columns) {
  const auto width = static_cast<std::size_t>(std::max(columns, 1));
  if (text.size() <= width) return text;
  const std::size_t end = text.rfind("  ", width);  // parts are two spaces apart
  return text.substr(0, end == std::string::npos ? width : end);
}

ProgressLine::ProgressLine(std::function<int()> columns, std::function<void(std::string_view)> write)
    : columns_(std::move(columns)), write_(std::move(write)) {}

void ProgressLine::show(const Progress& progress, Time now) {
  const Duration interval = columns_ ? std::chrono::milliseconds(200) : std::chrono::seconds(10);
  const bool last = progress.step == progress.steps;
  if (!last && shown_ && now - *shown_ < interval) return;
  shown_ = now;
  if (!columns_) return write_(progress_text(progress) + "\n");
  // One column less: the cursor stands behind the text. Then erases the rest of a longer line.
  write_(fmt::format("\r{}\x1b[K", shortened(progress_text(progress), columns_() - 1)));
  open_ = true;
  if (last) end();
}

void ProgressLine::message(const std::string& text) {
  end();
  write_(text + "\n");
}

void ProgressLine::end() {
  if (open_) write_("\n");
  open_ = false;
}

}  // namespace starling
