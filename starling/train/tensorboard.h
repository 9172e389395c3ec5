// Scalars and texts as TensorBoard's event files, written without TensorFlow or protobuf: `tensorboard --logdir OUT/tensorboard`.
//
// A file is a row of records (TFRecord): length (8 bytes), masked CRC32C of these, data, masked CRC32C of the data; all
// little-endian. The data of each is one protobuf message `Event`; of its fields these are written:
//
//   Event     1 wall_time: double   2 step: int64   3 file_version: string (first record)   5 summary: Summary
//   Summary   1 value: Value, repeated
//   Value     1 tag: string         2 simple_value: float        8 tensor: TensorProto     9 metadata: its 1.1 names the plugin
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
  // Makes the folder and in it a new events.out.tfevents.SECONDS.HOST.PID. Throws Error where that or a later write
  // fails.
  explicit EventFile(const std::string& folder);

  // All at the present time. They are in the file on return.
  void write(std::int64_t step, const Scalars& scalars);
  void write_text(std::int64_t step, std::string_view tag, std::string_view text);  // Markdown

 private:
  void append_summary(std::int64_t step, const std::string& summary);
  void append(const std::string& event);

  std::string path_;
  std::ofstream file_;
};

}  // namespace starling
