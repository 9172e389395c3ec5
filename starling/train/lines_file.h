// A file of lines that grows during a run. A full disk costs lines and one warning, not the run.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "starling/core/descriptor.h"
#include "starling/core/log.h"

namespace starling {

class LinesFile {
 public:
  // Opens the file to append to it, and makes it if it is missing. Throws Error.
  LinesFile(std::string path, Log log);

  const std::string& path() const { return path_; }
  // One write(), so several processes may append to one file. After a failure the next one that
  // succeeds begins on a new line.
  void append(std::string_view lines);
  // Replaces the contents by some of its lines, in place: no room is needed. On a failure, all of
  // the file stays that is not written yet.
  void keep(std::string_view lines);

 private:
  const std::string path_;
  const Log log_;
  Descriptor file_;
  bool failing_ = false;  // the latest lines could not be written
  bool cut_off_ = false;  // .. but a part of them was
};

// The lines of a run up to these steps of each rank. A line of another form is dropped with a
// warning. A line without a rank or a step is one of rank 0, or after all steps.
std::string lines_up_to(const std::string& path, std::span<const std::int64_t> steps, const Log& log);

// The largest "seconds" of the lines at the end of the file; 0 if there are none.
double latest_seconds(const std::string& path);

}  // namespace starling
