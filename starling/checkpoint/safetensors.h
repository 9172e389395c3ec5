// Files of named tensors, in the safetensors format (https://github.com/huggingface/safetensors),
// without torch:
//
//   8 bytes      N, the length of the header, little-endian
//   N bytes      JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..,
//                       "__metadata__": {"key": "text", ..}}
//   the rest     the tensors' bytes, without gaps
//
// The reader trusts nothing in a file. It refuses whatever the format does not allow, with an Error
// "file: offset N: reason". This includes:
//
// - a header above 16 MB or beyond the file's end, and a file whose length differs from its header
// - duplicate keys and unknown dtypes
// - sizes that are negative or fractional, or that overflow
// - gaps and overlaps
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "starling/core/file.h"

namespace starling {

struct TensorInfo {
  std::string name;
  std::string dtype;  // as in the file: "F32", "I64", ..
  std::vector<std::int64_t> shape{};
  std::uint64_t begin = 0;  // of its bytes, after the header
  std::uint64_t end = 0;

  std::uint64_t bytes() const { return end - begin; }
};

using Metadata = std::map<std::string, std::string>;

// The identity of a file's content.
struct Digest {
  std::uint64_t bytes = 0;
  std::uint32_t crc32c = 0;
  bool operator==(const Digest&) const = default;
};

// Reads the header, and tensors only on request.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::string& path) : SafetensorsReader(File::to_read(path)) {}
  explicit SafetensorsReader(File file);

  const std::string& path() const { return file_.path(); }
  // In the order of their bytes.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const TensorInfo* find(const std::string& name) const;  // null: no such tensor
  const Metadata& metadata() const { return metadata_; }
  // to.size() must be the tensor's bytes().
  void read(const TensorInfo& tensor, std::span<std::byte> to) const;
  // In the file.
  std::uint64_t offset(const TensorInfo& tensor) const { return data_ + tensor.begin; }
  Digest digest() const;  // reads the whole file

 private:
  File file_;
  std::uint64_t data_ = 0;  // where the tensors' bytes begin
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::size_t> by_name_;
  Metadata metadata_;
};

// Writes the header first, then the tensors' bytes as they are given.
class SafetensorsWriter {
 public:
  // Takes name, dtype and shape from `tensors`. tensors() are the same, in the order in which they
  // must be written.
  SafetensorsWriter(File file, std::vector<TensorInfo> tensors, const Metadata& metadata);
  SafetensorsWriter(const std::string& path, std::vector<TensorInfo> tensors, const Metadata& metadata)
      : SafetensorsWriter(File::to_write(path), std::move(tensors), metadata) {}

  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  void write(std::span<const std::byte> bytes);
  // Everything is written: brings it to the disk.
  Digest finish();

 private:
  File file_;
  std::vector<TensorInfo> tensors_;
  std::uint64_t end_ = 0;  // of the file, as the header says
  std::uint32_t crc_ = 0;
};

}  // namespace starling
