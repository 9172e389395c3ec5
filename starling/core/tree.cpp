#include "starling/core/tree.h"

#define TOML_HEADER_ONLY 1
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include <fmt/format.h>

// toml++ 3.3 asserts on some malformed keys, and misbehaves if assertions are off. Here it refuses
// them.
#define TOML_ASSERT(condition) ((condition) ? static_cast<void>(0) : throw std::invalid_argument("malformed"))
#include <toml++/toml.h>

#include "starling/core/error.h"

namespace starling {

namespace {

constexpr std::ptrdiff_t kMaxDots = 1000;
constexpr int kMaxDepth = 32;

[[noreturn]] void too_deep(const std::string& name) {
  throw UsageError(fmt::format("{}: nested deeper than {} levels", name, kMaxDepth));
}

std::string one_line(std::string_view text) {
  std::string line(text);
  std::replace_if(line.begin(), line.end(), [](unsigned char c) { return c < 0x20; }, ' ');
  return line;
}

// --- TOML ---

// Counts the dots that are no decimal point. A number stands between spaces or brackets, so in a
// dotted key at most every other dot can look like one.
std::ptrdiff_t structural_dots(std::string_view text) {
  const auto among = [&](std::size_t i, std::string_view characters) {
    return i >= text.size() || characters.find(text[i]) != std::string_view::npos;
  };
  const auto digit = [&](std::size_t i) {
    return i < text.size() && std::isdigit(static_cast<unsigned char>(text[i])) != 0;
  };
  std::ptrdiff_t dots = 0;
  for (std::size_t dot = text.find('.'); dot != std::string_view::npos; dot = text.find('.', dot + 1)) {
    std::size_t first = dot, last = dot + 1;
    while (first > 0 && digit(first - 1)) --first;
    while (digit(last)) ++last;
    const bool point = first < dot && last > dot + 1 && (first == 0 || among(first - 1, " \t\n[,=+-")) &&
                       among(last, " \t\r\n],}#eE");
    if (!point) ++dots;
  }
  return dots;
}

// Refuses text that toml++ cannot handle.
void check_toml_text(std::string_view text, const std::string& name) {
  // The parser recurses one level for every dot of a.b.c.
  if (structural_dots(text) > kMaxDots) {
    throw UsageError(fmt::format("{}: more than {} dots outside of numbers: its keys are nested too deep",
                                 name, kMaxDots));
  }
  // The parser's tables of other alphabets are incomplete. Strings and comments may hold anything.
  int line = 1;
  for (std::string_view rest = text; !rest.empty(); ++line) {
    const std::string_view plain = rest.substr(0, rest.find_first_of("#\"'\n"));
    if (std::any_of(plain.begin(), plain.end(),
                    [](char c) { return static_cast<unsigned char>(c) >= 0x80; })) {
      throw UsageError(
          fmt::format("{}:{}: not TOML: a byte outside of strings and comments is not ASCII", name, line));
    }
    const std::size_t end = rest.find('\n');
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
}

Node from_toml(const toml::node& from, const std::string& name, int depth) {
  if (depth > kMaxDepth) too_deep(name);
  Node node{Node::Other{"a date or time"}, static_cast<int>(from.source().begin.line)};
  if (const auto* b = from.as_boolean()) {
    node.value = b->get();
  } else if (const auto* i = from.as_integer()) {
    node.value = i->get();
  } else if (const auto* d = from.as_floating_point()) {
    node.value = d->get();
  } else if (const auto* s = from.as_string()) {
    node.value = s->get();
  } else if (const auto* a = from.as_array()) {
    auto& array = node.value.emplace<Node::Array>();
    for (const toml::node& element : *a) array.push_back(from_toml(element, name, depth + 1));
  } else if (const auto* t = from.as_table()) {
    auto& table = node.value.emplace<Node::Table>();
    for (const auto& [key, element] : *t) {
      table.push_back({std::string(key.str()), from_toml(element, name, depth + 1),
                       static_cast<int>(key.source().begin.line)});
    }
  }
  return node;
}

// --- JSON ---

// The text for the parser. Counts the lines read so far.
struct Reading {
  int line = 1;
  char last = 0;  // character
};
struct Reader {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at;
  Reading* reading;

  reference operator*() const { return *at; }
  Reader& operator++() {
    reading->last = *at++;
    if (reading->last == '\n') ++reading->line;
    return *this;
  }
  bool operator==(const Reader& other) const { return at == other.at; }
  bool operator!=(const Reader& other) const { return at != other.at; }
};

// The parser reports one token after the other, without recursion.
class JsonTree final : public nlohmann::json_sax<nlohmann::json> {
 public:
  JsonTree(const std::string& name, const Reading& reading) : name_(name), reading_(reading) {}

  Node root;

  bool null() override { return add(Node::Other{"null"}); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(std::int64_t value) override { return add(value); }
  bool number_unsigned(std::uint64_t value) override {
    if (std::in_range<std::int64_t>(value)) return add(static_cast<std::int64_t>(value));
    return add(static_cast<double>(value));
  }
  bool number_float(double value, const std::string&) override { return add(value); }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(nlohmann::json::binary_t&) override { return false; }  // does not occur in text
  bool start_object(std::size_t) override { return open(Node::Table{}); }
  bool start_array(std::size_t) override { return open(Node::Array{}); }
  bool key(std::string& key) override {
    std::get<Node::Table>(open_.back()->value).push_back({std::move(key), {}, reading_.line});
    return true;
  }
  bool end_object() override {
    auto& table = std::get<Node::Table>(open_.back()->value);
    std::stable_sort(table.begin(), table.end(),
                     [](const Member& a, const Member& b) { return a.name < b.name; });
    const auto twice = std::adjacent_find(table.begin(), table.end(),
                                          [](const Member& a, const Member& b) { return a.name == b.name; });
    if (twice != table.end()) {
      throw UsageError(fmt::format("{}: {} stands twice in one table", place(name_, std::next(twice)->line),
                                   short_of(twice->name)));
    }
    return end_array();
  }
  bool end_array() override {
    open_.pop_back();
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while ..."
    const std::string what = one_line(error.what());
    const std::size_t colon = what.find(": ");
    throw UsageError(fmt::format("{}: not JSON: {}", place(name_, line()),
                                 colon == std::string::npos ? what : what.substr(colon + 2)));
  }

 private:
  // The end of a number is found only when the next character is read.
  int line() const { return reading_.line - (reading_.last == '\n' ? 1 : 0); }
  Node* put(Node node) {
    if (open_.empty()) return &(root = std::move(node));
    if (auto* array = std::get_if<Node::Array>(&open_.back()->value))
      return &array->emplace_back(std::move(node));
    return &(std::get<Node::Table>(open_.back()->value).back().node = std::move(node));
  }
  template <class T>
  bool add(T value) {
    put({std::move(value), line()});
    return true;
  }
  template <class T>
  bool open(T value) {
    if (open_.size() == kMaxDepth) too_deep(name_);
    open_.push_back(put({std::move(value), line()}));
    return true;
  }

  const std::string& name_;
  const Reading& reading_;
  std::vector<Node*> open_;  // from the root to the latest; only the last one grows
};

}  // namespace

std::string Node::kind() const {
  static constexpr const char* kinds[] = {"",       "true or false", "a whole number", "a number",
                                          "a text", "an array",      "a section"};
  const auto* other = as<Other>();
  return other ? other->kind : kinds[value.index()];
}

std::string read_at_most(const std::string& path, std::size_t most, std::string_view kind) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) throw UsageError(fmt::format("{}: cannot be opened: {}", path, std::strerror(errno)));
  std::string text(most + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get()))
    throw UsageError(fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
  if (text.size() > most) {
    throw UsageError(fmt::format("{}: larger than {} bytes, so it is no {}", path, most, kind));
  }
  return text;
}

Node parse_toml(std::string_view text, const std::string& name) {
  check_toml_text(text, name);
  try {
    return from_toml(toml::parse(text, name), name, 0);
  } catch (const toml::parse_error& error) {
    throw UsageError(fmt::format("{}: not TOML: {}", place(name, static_cast<int>(error.source().begin.line)),
                                 one_line(error.description())));
  } catch (const std::invalid_argument&) {
    throw UsageError(fmt::format("{}: not TOML: a key is malformed", name));
  }
}

Node parse_json(std::string_view text, const std::string& name) {
  Reading reading;
  JsonTree tree(name, reading);
  nlohmann::json::sax_parse(Reader{text.data(), &reading}, Reader{text.data() + text.size(), &reading},
                            &tree);
  if (!tree.root.as<Node::Table>()) {
    throw UsageError(fmt::format("{}: it must contain one object, not {}", name, tree.root.kind()));
  }
  return std::move(tree.root);
}

std::string place(const std::string& file, int line) {
  return line > 0 ? fmt::format("{}:{}", file, line) : file;
}

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      out += fmt::format("\\u{:04X}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string short_of(std::string_view text) {
  constexpr std::size_t kMost = 60;
  if (text.size() <= kMost) return in_quotes(text);
  std::size_t end = kMost;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return in_quotes(text.substr(0, end)) + "...";
}

}  // namespace starling
