#include "starling/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <tuple>

#include <fmt/format.h>

#include "starling/core/crc32c.h"
#include "starling/core/error.h"
#include "starling/core/failpoint.h"
#include "starling/core/text.h"

namespace starling {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are written as they lie in memory");

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMostHeader = 16 << 20;
constexpr std::string_view kMetadata = "__metadata__";

constexpr std::pair<std::string_view, std::uint64_t> kDtypes[] = {
    {"F64", 8}, {"I64", 8}, {"U64", 8}, {"F32", 4},     {"I32", 4},     {"U32", 4}, {"F16", 2}, {"BF16", 2},
    {"I16", 2}, {"U16", 2}, {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"U8", 1},  {"BOOL", 1}};

// Bytes per element; 0 for an unknown dtype.
std::uint64_t element_bytes(std::string_view dtype) {
  for (const auto& [name, bytes] : kDtypes) {
    if (name == dtype) return bytes;
  }
  return 0;
}

// False if the product overflows.
bool tensor_bytes(const TensorInfo& tensor, std::uint64_t& bytes) {
  bytes = element_bytes(tensor.dtype);
  for (const std::int64_t extent : tensor.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes)) return false;
  }
  return true;
}

// The header's text. Counts how far it has been read.
struct Cursor {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  reference operator*() const { return *at; }
  Cursor& operator++() {
    *reached = ++at;
    return *this;
  }
  Cursor operator++(int) {
    const Cursor before = *this;
    ++*this;
    return before;
  }
  bool operator==(const Cursor& other) const { return at == other.at; }

  const char* at = nullptr;
  const char** reached = nullptr;
};

// Takes the header's JSON piece by piece, so that it sees duplicate keys and builds nothing that it
// will refuse.
class HeaderParser final : public nlohmann::json::json_sax_t {
 public:
  HeaderParser(std::vector<TensorInfo>& tensors, Metadata& metadata)
      : tensors_(tensors), metadata_(metadata) {}

  // Throws Error.
  void parse(const std::string& path, const std::string& text) {
    const char* reached = text.data();
    const char* const end = text.data() + text.size();
    if (nlohmann::json::sax_parse(Cursor{text.data(), &reached}, Cursor{end, &reached}, this)) return;
    refuse(path, kLengthBytes + static_cast<std::uint64_t>(reached - text.data()), reason_);
  }

  bool start_object(std::size_t) override {
    if (depth_ > 1) return wrong("an object");
    if (++depth_ == 1) return true;
    entry_ = key_;
    fields_.clear();
    if (entry_ != kMetadata) tensors_.push_back({.name = entry_, .dtype = {}});
    return true;
  }
  bool end_object() override {
    --depth_;
    if (depth_ == 1 && entry_ != kMetadata && fields_.size() != 3) {
      return fail(fmt::format("tensor {} lacks one of dtype, shape and data_offsets", short_of(entry_)));
    }
    return true;
  }
  bool key(std::string& name) override {
    key_ = name;
    if (name.empty()) return fail("a name is empty");
    if (depth_ == 1)
      return names_.insert(name).second || fail(fmt::format("{} is there twice", short_of(name)));
    if (!fields_.insert(name).second) {
      return fail(fmt::format("{} is there twice in {}", short_of(name), short_of(entry_)));
    }
    if (entry_ == kMetadata || name == "dtype" || name == "shape" || name == "data_offsets") return true;
    return fail(fmt::format("tensor {} has an unknown field {}", short_of(entry_), short_of(name)));
  }
  bool string(std::string& text) override {
    if (depth_ != 2) return wrong("a text");
    if (entry_ == kMetadata) {
      metadata_[key_] = text;
      return true;
    }
    if (key_ != "dtype") return wrong("a text");
    if (element_bytes(text) == 0) return fail(fmt::format("unknown dtype {}", short_of(text)));
    tensors_.back().dtype = text;
    return true;
  }
  bool start_array(std::size_t) override {
    if (depth_ != 2 || entry_ == kMetadata || key_ == "dtype") return wrong("a list");
    ++depth_;
    offsets_ = 0;
    return true;
  }
  bool end_array() override {
    --depth_;
    if (key_ == "shape" || offsets_ == 2) return true;
    return fail(fmt::format("data_offsets of {} are {} numbers, not 2", short_of(entry_), offsets_));
  }
  bool number_unsigned(std::uint64_t number) override {
    if (depth_ != 3) return wrong("a number");
    if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return fail(fmt::format("{} is too large", number));
    }
    TensorInfo& tensor = tensors_.back();
    if (key_ == "shape") {
      tensor.shape.push_back(static_cast<std::int64_t>(number));
    } else {
      (offsets_++ == 0 ? tensor.begin : tensor.end) = number;
    }
    return true;
  }
  bool number_integer(std::int64_t number) override {
    return fail(fmt::format("{} is negative; only whole numbers from 0 are allowed", number));
  }
  bool number_float(double, const std::string& text) override {
    return fail(fmt::format("{} is not a whole number that fits 64 bits", text.substr(0, 40)));
  }
  bool boolean(bool) override { return wrong("a boolean"); }
  bool null() override { return wrong("null"); }
  bool binary(nlohmann::json::binary_t&) override { return wrong("binary"); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override {
    return fail("invalid JSON from here on");
  }

 private:
  bool fail(std::string reason) {
    reason_ = std::move(reason);
    return false;
  }
  bool wrong(std::string_view what) { return fail(fmt::format("{} is not expected here", what)); }

  std::vector<TensorInfo>& tensors_;
  Metadata& metadata_;
  int depth_ = 0;  // 1: names; 2: fields of one tensor, or metadata; 3: numbers of a list
  std::string key_;
  std::string entry_;
  std::set<std::string> names_;
  std::set<std::string> fields_;  // of the entry
  int offsets_ = 0;
  std::string reason_;
};

}  // namespace

SafetensorsReader::SafetensorsReader(File file) : file_(std::move(file)) {
  const std::string& path = file_.path();
  if (file_.size() < kLengthBytes) {
    refuse(path, file_.size(), "the file ends within its first 8 bytes, the header's length");
  }
  std::uint64_t length = 0;
  file_.read(0, std::as_writable_bytes(std::span(&length, 1)));
  const std::uint64_t most = std::min(kMostHeader, file_.size() - kLengthBytes);
  if (length > most) {
    refuse(path, 0,
           fmt::format("the header's length is {}; allowed are {} at most (16 MB, and the file's end)",
                       length, most));
  }
  std::string header(length, '\0');
  file_.read(kLengthBytes, std::as_writable_bytes(std::span(header)));
  if (!header.starts_with('{')) refuse(path, kLengthBytes, "the header does not begin with {");
  HeaderParser(tensors_, metadata_).parse(path, header);
  data_ = kLengthBytes + length;

  std::sort(tensors_.begin(), tensors_.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  std::uint64_t reached = 0;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const TensorInfo& t = tensors_[i];
    const auto complain = [&](const std::string& reason) {
      refuse(path, data_ + reached, fmt::format("tensor {}: {}", short_of(t.name), reason));
    };
    if (t.begin != reached || t.end < t.begin) {
      complain(fmt::format("its offsets are {} to {}, but the bytes before it end at {}", t.begin, t.end,
                           reached));
    }
    std::uint64_t bytes = 0;
    if (!tensor_bytes(t, bytes)) complain("its size does not fit 64 bits");
    if (bytes != t.bytes()) {
      complain(fmt::format("its shape needs {} bytes, its offsets say {}", bytes, t.bytes()));
    }
    reached = t.end;
    by_name_[t.name] = i;
  }
  if (reached != file_.size() - data_) {
    refuse(
        path, std::min(data_ + reached, file_.size()),
        fmt::format("the header lists {} bytes of tensors, the file has {}", reached, file_.size() - data_));
  }
}

const TensorInfo* SafetensorsReader::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

void SafetensorsReader::read(const TensorInfo& tensor, std::span<std::byte> to) const {
  if (to.size() != tensor.bytes()) throw Error(path() + ": a tensor is read into memory of another size");
  file_.read(data_ + tensor.begin, to);
}

Digest SafetensorsReader::digest() const {
  std::vector<std::byte> piece(std::min<std::uint64_t>(file_.size(), 1 << 20));
  Digest digest{file_.size(), 0};
  for (std::uint64_t at = 0; at < file_.size(); at += piece.size()) {
    const auto part = std::span(piece).first(std::min<std::uint64_t>(piece.size(), file_.size() - at));
    file_.read(at, part);
    digest.crc32c = crc32c(part, digest.crc32c);
  }
  return digest;
}

SafetensorsWriter::SafetensorsWriter(File file, std::vector<TensorInfo> tensors, const Metadata& metadata)
    : file_(std::move(file)), tensors_(std::move(tensors)) {
  const std::string& path = file_.path();
  // Wide elements come first, so every tensor is aligned to its elements.
  std::stable_sort(tensors_.begin(), tensors_.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return element_bytes(a.dtype) > element_bytes(b.dtype);
  });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[std::string(kMetadata)] = metadata;
  std::uint64_t at = 0;
  for (TensorInfo& t : tensors_) {
    std::uint64_t bytes = 0;
    if (element_bytes(t.dtype) == 0 || !tensor_bytes(t, bytes)) {
      throw Error(
          fmt::format("{}: tensor {} of dtype {} cannot be written", path, short_of(t.name), t.dtype));
    }
    t.begin = at;
    t.end = at += bytes;
    header[t.name] = {{"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {t.begin, t.end}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  if (text.size() > kMostHeader) throw Error(path + ": the header would be longer than 16 MB");
  const std::uint64_t length = text.size();
  write(std::as_bytes(std::span(&length, 1)));
  write(std::as_bytes(std::span(text)));
  end_ = kLengthBytes + length + at;
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  file_.write(bytes);
  crc_ = crc32c(bytes, crc_);
}

Digest SafetensorsWriter::finish() {
  if (file_.size() != end_) {
    throw Error(
        fmt::format("{}: {} bytes were written, the header says {}", file_.path(), file_.size(), end_));
  }
  failpoint("checkpoint-write");
  file_.sync();
  return {end_, crc_};
}

}  // namespace starling
