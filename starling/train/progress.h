// The progress line of rank 0:
//
//   step 940/1872  epoch 2.01/4  loss 0.2871  2105 samples/s  0:57 left  rank 0 waits 3 %
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "starling/core/clock.h"
#include "starling/train/trainer.h"

namespace starling {

std::string progress_text(const Progress& progress);
// The leading parts of a progress text that fit into so many columns; at least the step.
std::string shortened(const std::string& text, int columns);

// On a terminal, one line that is overwritten five times a second and never wraps; elsewhere, a new
// line every ten seconds. The last step is always shown.
class ProgressLine {
 public:
  // `columns` returns the width of the terminal; null: there is no terminal.
  ProgressLine(std::function<int()> columns, std::function<void(std::string_view)> write);

  void show(const Progress& progress, Time now);
  // Writes a message on a line of its own.
  void message(const std::string& text);
  // Ends a line that would be overwritten.
  void end();

 private:
  std::function<int()> columns_;
  std::function<void(std::string_view)> write_;
  std::optional<Time> shown_;
  bool open_ = false;  // the cursor is at the end of a progress line
};

}  // namespace starling
