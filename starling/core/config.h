// Typed configuration: TOML files and `--section.key value` overrides, read into the fields of a plain
// struct.
//
//   Recipe recipe;
//   Config config;
//   config.section("optimizer", "the local update");
//   config.key("lr", &recipe.optimizer.lr, above(0), "learning rate, at its highest");
//   config.read_file("recipes/fashion-mnist.toml");
//   config.set("optimizer.lr", "0.002");
//
// Every key is declared once; parsing, messages, --print-config and the overrides come from that declaration.
// What a field holds when it is declared is the default. The fields must outlive the Config.
//
// All errors are UsageErrors of one line: where (file:line or "command line"), which key, what is wrong, what
// is allowed. Hostile input (huge, deeply nested, not UTF-8, a device) is refused like any other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace starling {

// What a number may be, ends included unless `*_open`.
struct Range {
  double least = -std::numeric_limits<double>::max();
  double most = std::numeric_limits<double>::max();
  bool least_open = false;
  bool most_open = false;

  bool holds(double value) const;  // false for NaN and infinities
  std::string text() const;        // "at least 0 and below 1", empty when everything is allowed
};
inline Range at_least(double least) { return {.least = least}; }
inline Range above(double least) { return {.least = least, .least_open = true}; }
inline Range between(double least, double most) { return {.least = least, .most = most}; }
inline Range from_below(double least, double most) {
  return {.least = least, .most = most, .most_open = true};
}

using Choices = std::vector<std::string>;

class Config {
 public:
  static constexpr std::size_t kMostBytes = 32 << 10;  // of a file

  // Sections and keys appear in print() in the order of declaration; key() adds to the latest section.
  void section(std::string name, std::string help);
  void key(std::string name, bool* field, std::string help);
  void key(std::string name, int* field, Range range, std::string help);
  void key(std::string name, std::int64_t* field, Range range, std::string help);
  void key(std::string name, double* field, Range range, std::string help);
  void key(std::string name, std::array<double, 2>* field, Range range, std::string help);
  void key(std::string name, std::string* field, std::string help);                   // any text
  void key(std::string name, std::string* field, Choices choices, std::string help);  // one of these

  // Sets what the file says and leaves the rest. At most 32 KB. On error some fields may have been set
  // already.
  void read_file(const std::string& path);
  void read_text(std::string_view text, const std::string& name);  // `name` stands for the file in messages
  // One override of the command line: path is "section.key".
  void set(const std::string& path, const std::string& value);

  // All keys, in the order of declaration, with their present values.
  struct Entry {
    std::string section, name, value, help, allowed;
  };
  std::vector<Entry> entries() const;
  // A TOML file of all keys with their present values; each carries its help and what is allowed as a
  // comment.
  std::string print() const;
  // Where a key's value comes from: "file:line", "command line" or "default".
  std::string origin(const std::string& path) const;

 private:
  using Field = std::variant<bool*, int*, std::int64_t*, double*, std::array<double, 2>*, std::string*>;
  using Value = std::variant<bool, std::int64_t, double, std::vector<double>, std::string>;
  struct Key {
    std::string name;
    Field field;
    Range range;
    Choices choices;
    std::string help;
  };
  struct Section {
    std::string name;
    std::string help;
    std::vector<Key> keys;
  };

  static std::string wanted(const Key& key);     // "a number above 0"
  static std::string shown(const Field& field);  // the value as TOML writes it
  const Section& find_section(const std::string& name, const std::string& where) const;
  const Key& find_key(const Section& section, const std::string& name, const std::string& where) const;
  static void assign(const Section& section, const Key& key, const Value& value,
                     const std::string& as_written, const std::string& where);

  std::vector<Section> sections_;
  std::map<std::string, std::string> origins_;  // "section.key" -> where it was set
};

// The name nearest to `name` by edits, or empty when none is near.
std::string nearest_name(const std::string& name, const std::vector<std::string>& names);

}  // namespace starling
