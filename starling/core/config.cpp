#include "starling/core/config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starling/core/error.h"
#include "starling/core/text.h"
#include "starling/core/tree.h"

namespace starling {

namespace {

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

std::string number(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

// Also "+3".
template <class T>
std::optional<T> signed_number(std::string_view text) {
  return parse_number<T>(text.starts_with('+') ? text.substr(1) : text);
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

// "0.9,0.99" or "[0.9, 0.99]"
std::optional<std::vector<double>> parse_numbers(std::string_view text) {
  text = trimmed(text);
  if (text.starts_with('[') && text.ends_with(']') && text.size() >= 2)
    text = text.substr(1, text.size() - 2);
  std::vector<double> values;
  while (true) {
    const std::size_t comma = text.find(',');
    const auto value = signed_number<double>(trimmed(text.substr(0, comma)));
    if (!value) return std::nullopt;
    values.push_back(*value);
    if (comma == std::string_view::npos) return values;
    text.remove_prefix(comma + 1);
  }
}

// Empty if one of them is not a number.
std::vector<double> numbers_of(const Node::Array& array) {
  std::vector<double> values;
  for (const Node& node : array) {
    if (const auto* whole = node.as<std::int64_t>()) {
      values.push_back(static_cast<double>(*whole));
    } else if (const auto* number = node.as<double>()) {
      values.push_back(*number);
    }
  }
  return values.size() == array.size() ? values : std::vector<double>{};
}

}  // namespace

bool Range::holds(double value) const {
  return (least_open ? value > least : value >= least) && (most_open ? value < most : value <= most) &&
         std::isfinite(value);
}

std::string Range::text() const {
  std::string text;
  if (least != Range{}.least) text = fmt::format("{} {}", least_open ? "above" : "at least", least);
  if (most != Range{}.most)
    text += fmt::format("{}{} {}", text.empty() ? "" : " and ", most_open ? "below" : "at most", most);
  return text;
}

void Config::section(std::string name, std::string help) {
  sections_.push_back({std::move(name), std::move(help), {}});
}
void Config::key(std::string name, bool* field, std::string help) {
  sections_.back().keys.push_back({std::move(name), field, {}, {}, std::move(help)});
}
void Config::key(std::string name, int* field, Range range, std::string help) {
  range.least = std::max<double>(range.least, std::numeric_limits<int>::min());
  range.most = std::min<double>(range.most, std::numeric_limits<int>::max());
  sections_.back().keys.push_back({std::move(name), field, range, {}, std::move(help)});
}
void Config::key(std::string name, std::int64_t* field, Range range, std::string help) {
  sections_.back().keys.push_back({std::move(name), field, range, {}, std::move(help)});
}
void Config::key(std::string name, double* field, Range range, std::string help) {
  sections_.back().keys.push_back({std::move(name), field, range, {}, std::move(help)});
}
void Config::key(std::string name, std::array<double, 2>* field, Range range, std::string help) {
  sections_.back().keys.push_back({std::move(name), field, range, {}, std::move(help)});
}
void Config::key(std::string name, std::string* field, std::string help) {
  sections_.back().keys.push_back({std::move(name), field, {}, {}, std::move(help)});
}
void Config::key(std::string name, std::string* field, Choices choices, std::string help) {
  sections_.back().keys.push_back({std::move(name), field, {}, std::move(choices), std::move(help)});
}

std::string Config::wanted(const Key& key) {
  const std::string range = key.range.text();
  const std::string tail = range.empty() ? "" : " " + range;
  return std::visit(
      Overloaded{
          [](bool*) { return std::string("true or false"); },
          [&](int*) { return "a whole number" + tail; },
          [&](std::int64_t*) { return "a whole number" + tail; },
          [&](double*) { return "a number" + tail; },
          [&](std::array<double, 2>*) { return "two numbers, each" + (range.empty() ? " finite" : tail); },
          [&](std::string*) {
            return key.choices.empty() ? std::string("a text")
                                       : fmt::format("one of {}", fmt::join(key.choices, ", "));
          },
      },
      key.field);
}

std::string Config::shown(const Field& field) {
  return std::visit(Overloaded{
                        [](const bool* b) { return std::string(*b ? "true" : "false"); },
                        [](const int* i) { return fmt::format("{}", *i); },
                        [](const std::int64_t* i) { return fmt::format("{}", *i); },
                        [](const double* d) { return number(*d); },
                        [](const std::array<double, 2>* a) {
                          return fmt::format("[{}, {}]", number((*a)[0]), number((*a)[1]));
                        },
                        [](const std::string* s) { return in_quotes(*s); },
                    },
                    field);
}

const Config::Section& Config::find_section(const std::string& name, const std::string& where) const {
  std::vector<std::string> names;
  for (const Section& section : sections_) {
    if (section.name == name) return section;
    names.push_back(section.name);
  }
  throw UsageError(fmt::format("{}: unknown section {}{}; there are: {}", where, short_of(name),
                               did_you_mean(name, names), fmt::join(names, ", ")));
}

const Config::Key& Config::find_key(const Section& section, const std::string& name,
                                    const std::string& where) const {
  std::vector<std::string> names;
  for (const Key& key : section.keys) {
    if (key.name == name) return key;
    names.push_back(key.name);
  }
  std::string meant = did_you_mean(name, names);
  for (const Section& other : sections_) {
    if (meant.empty() && std::ranges::find(other.keys, name, &Key::name) != other.keys.end())
      meant = fmt::format(", did you mean {}.{}?", other.name, name);
  }
  throw UsageError(fmt::format("{}: unknown key {} in section {}{}; there are: {}", where, short_of(name),
                               section.name, meant, fmt::join(names, ", ")));
}

void Config::assign(const Section& section, const Key& key, const Value& value, const std::string& as_written,
                    const std::string& where) {
  const auto refuse = [&](const std::string& why) {
    throw UsageError(fmt::format("{}: {}.{} = {}: {}, allowed is {}", where, section.name, key.name,
                                 as_written, why, wanted(key)));
  };
  const auto whole = [&](auto* field) {
    const auto* v = std::get_if<std::int64_t>(&value);
    if (!v) return refuse("wrong type");
    if (!key.range.holds(static_cast<double>(*v))) return refuse("out of range");
    *field = static_cast<std::remove_pointer_t<decltype(field)>>(*v);
  };
  std::visit(Overloaded{
                 [&](bool* field) {
                   const auto* v = std::get_if<bool>(&value);
                   if (!v) return refuse("wrong type");
                   *field = *v;
                 },
                 [&](int* field) { whole(field); },
                 [&](std::int64_t* field) { whole(field); },
                 [&](double* field) {
                   const auto* whole_value = std::get_if<std::int64_t>(&value);
                   const auto* v = std::get_if<double>(&value);
                   if (!v && !whole_value) return refuse("wrong type");
                   const double d = v ? *v : static_cast<double>(*whole_value);
                   if (!key.range.holds(d)) return refuse("out of range");
                   *field = d;
                 },
                 [&](std::array<double, 2>* field) {
                   const auto* v = std::get_if<std::vector<double>>(&value);
                   if (!v || v->size() != 2) return refuse("wrong type");
                   if (!key.range.holds((*v)[0]) || !key.range.holds((*v)[1])) return refuse("out of range");
                   *field = {(*v)[0], (*v)[1]};
                 },
                 [&](std::string* field) {
                   const auto* v = std::get_if<std::string>(&value);
                   if (!v) return refuse("wrong type");
                   if (!is_utf8(*v)) return refuse("not UTF-8");
                   if (!key.choices.empty() &&
                       std::find(key.choices.begin(), key.choices.end(), *v) == key.choices.end())
                     return refuse("unknown" + did_you_mean(*v, key.choices));
                   *field = *v;
                 },
             },
             key.field);
}

void Config::read_text(std::string_view text, const std::string& name) {
  if (text.size() > kMostBytes) throw UsageError(fmt::format("{}: larger than {} bytes", name, kMostBytes));
  const Node root = parse_toml(text, name);
  for (const Member& part : *root.as<Node::Table>()) {
    const std::string where = place(name, part.line);
    const Section& section = find_section(part.name, where);
    const auto* table = part.node.as<Node::Table>();
    if (!table)
      throw UsageError(fmt::format("{}: {} is {}, but must be a section: [{}]", where, section.name,
                                   part.node.kind(), section.name));
    for (const auto& [key_name, node, line] : *table) {
      const std::string at = place(name, line);
      const Key& key = find_key(section, key_name, at);
      Value value;
      std::string as_written;
      if (const auto* b = node.as<bool>()) {
        value = *b;
        as_written = *b ? "true" : "false";
      } else if (const auto* i = node.as<std::int64_t>()) {
        value = *i;
        as_written = fmt::format("{}", *i);
      } else if (const auto* d = node.as<double>()) {
        value = *d;
        as_written = number(*d);
      } else if (const auto* s = node.as<std::string>()) {
        value = *s;
        as_written = short_of(*s);
      } else if (const auto* a = node.as<Node::Array>()) {
        value = numbers_of(*a);
        as_written = fmt::format("[{}]", fmt::join(std::get<std::vector<double>>(value), ", "));
        if (std::get<std::vector<double>>(value).size() != a->size()) as_written = node.kind();
      } else {
        throw UsageError(fmt::format("{}: {}.{}: {}, allowed is {}", at, section.name, key.name, node.kind(),
                                     wanted(key)));
      }
      assign(section, key, value, as_written, at);
      origins_[section.name + "." + key.name] = at;
    }
  }
}

void Config::set(const std::string& path, const std::string& text, const std::string& where) {
  const std::size_t dot = path.find('.');
  if (dot == std::string::npos)
    throw UsageError(fmt::format("{}: {}: an override has the form section.key", where, short_of(path)));
  const Section& section = find_section(path.substr(0, dot), where);
  const Key& key = find_key(section, path.substr(dot + 1), where);
  // Reads the text as the key's type asks. Text that cannot be read so stays a text, which assign()
  // refuses.
  Value value = text;
  std::visit(Overloaded{
                 [&](bool*) {
                   if (text == "true" || text == "false") value = text == "true";
                 },
                 [&](double*) {
                   if (const auto v = signed_number<double>(text)) value = *v;
                 },
                 [&](std::array<double, 2>*) {
                   if (auto v = parse_numbers(text)) value = std::move(*v);
                 },
                 [&](std::string*) {},
                 [&](auto*) {
                   if (const auto v = signed_number<std::int64_t>(text)) value = *v;
                 },
             },
             key.field);
  assign(section, key, value, std::holds_alternative<std::string>(value) ? short_of(text) : text, where);
  origins_[path] = where;
}

std::vector<Config::Entry> Config::entries() const {
  std::vector<Entry> entries;
  for (const Section& section : sections_) {
    for (const Key& key : section.keys)
      entries.push_back({section.name, key.name, shown(key.field), key.help, wanted(key)});
  }
  return entries;
}

std::string Config::print() const {
  std::string out;
  for (const Section& section : sections_) {
    out += fmt::format("{}[{}]  # {}\n", out.empty() ? "" : "\n", section.name, section.help);
    for (const Key& key : section.keys) {
      out += fmt::format("{} = {}  # {}; {}\n", key.name, shown(key.field), key.help, wanted(key));
    }
  }
  return out;
}

std::string Config::origin(const std::string& path) const {
  const auto found = origins_.find(path);
  return found == origins_.end() ? "default" : found->second;
}

}  // namespace starling
