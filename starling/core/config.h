// Typed configuration: TOML files and `--section.key value` overrides, read into the fields of a
// plain struct.
//
//   Recipe recipe;
//   Config config;
//   config.section("optimizer", "the local update");
//   config.key("lr", &recipe.optimizer.lr, above(0), "learning rate, at its highest");
//   config.read_text(text, "recipes/fashion-mnist.toml");
//   config.set("optimizer.lr", "0.002");
//
// Every key is declared once; parsing, messages, --print-config and the overrides come from that
// declaration. The value of a field at its declaration is the default. The fields must outlive the
// Config.
//
// Every error is a UsageError of one line. It names the place (file:line or "command line"), the
// key, the mistake, and the allowed values. Hostile input (huge, deeply nested, not UTF-8, a
// device) is refused in the same way.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "starling/core/range.h"

namespace starling {

using Choices = std::vector<std::string>;

class Config {
 public:
  static constexpr std::size_t kMostBytes = 32 << 10;  // of a file

  // print() keeps the order of declaration. key() adds to the latest section.
  void section(std::string name, std::string help);
  void key(std::string name, bool* field, std::string help);
  void key(std::string name, int* field, Range range, std::string help);
  void key(std::string name, std::int64_t* field, Range range, std::string help);
  void key(std::string name, double* field, Range range, std::string help);
  void key(std::string name, std::array<double, 2>* field, Range range, std::string help);
  void key(std::string name, std::string* field, std::string help);  // any text
  // One of these.
  void key(std::string name, std::string* field, Choices choices, std::string help);

  // Sets the values of the text, at most kMostBytes, and leaves the others. `name` is the file name
  // in messages. After an error some fields may be set already.
  void read_text(std::string_view text, const std::string& name);
  // One override. `path` is "section.key"; `where` is its place in messages.
  void set(const std::string& path, const std::string& value, const std::string& where = "command line");

  // All keys, in the order of declaration, with their current values.
  struct Entry {
    std::string section, name, value, help, allowed;
  };
  std::vector<Entry> entries() const;
  // A TOML file of all keys with their current values. A comment gives each key's help and allowed
  // values.
  std::string print() const;
  // The source of a key's value: "file:line", "command line" or "default".
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
  std::map<std::string, std::string> origins_;  // "section.key" -> the place that set it
};

}  // namespace starling
