// Writes scalars and texts as event files for `tensorboard --logdir OUT/tensorboard`, without
// TensorFlow or protobuf.
//
// A file is a sequence of records (TFRecord): length (8 bytes), masked CRC32C of the length, data,
// masked CRC32C of the data; all little-endian. The data is a protobuf message `Event`. These
// fields are written:
//
//   Event     1 wall_time: double   2 step: int64   3 file_version: string, in the first record
//             5 summary: Summary
//   Summary   1 value: Value, repeated
//   Value     1 tag: string         2 simple_value: float        8 tensor: TensorProto
//             9 metadata: its field 1.1 names the plugin
//   TensorProto    1 dtype          2 shape: none, one value     8 string_val: bytes
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace starling {

using Scalars = std::vector<std::pair<std::string_view, double>>;  // {"train/loss", 0.5}

class EventFile {
 public:
  // Makes the folder and a new file events.out.tfevents.SECONDS.HOST.PID. Throws Error if that or a
  // later write fails.
  explicit EventFile(const std::string& folder);

  // Writes them with the present time. They are in the file on return.
  void write(std::int64_t step, const Scalars& scalars);
  void write_text(std::int64_t step, std::string_view tag, std::string_view text);  // Markdown

 private:
  void append_summary(std::int64_t step, const std::string& summary);
  void append(const std::string& event);

  std::string path_;
  std::ofstream file_;
};

}  // namespace starling
