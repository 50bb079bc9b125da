/* The text of PTX: files, and the statements of a kernel. */
#include "ptx.h"
#include "tests/cuda/simt/simt.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace ptx
{

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%' || c == '.' || c == ':';
}

std::string_view trim(std::string_view text)
{
    while (!text.empty() && is_space(text.front()))
        text.remove_prefix(1);
    while (!text.empty() && is_space(text.back()))
        text.remove_suffix(1);
    return text;
}

std::vector<std::string_view> split(std::string_view text, char separator)
{
    std::vector<std::string_view> parts;
    size_t begin = 0;
    int depth = 0;
    for (size_t i = 0; i <= text.size(); i++) {
        if (i == text.size() || (text[i] == separator && depth == 0)) {
            std::string_view part = trim(text.substr(begin, i - begin));
            if (!part.empty())
                parts.push_back(part);
            begin = i + 1;
        } else {
            depth += (text[i] == '{' || text[i] == '[') - (text[i] == '}' || text[i] == ']');
        }
    }
    return parts;
}

uint64_t number_of(std::string_view text)
{
    uint64_t value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
}

size_t type_bytes(std::string_view type)
{
    static const std::map<std::string_view, size_t> sizes = {
        {"b8", 1},  {"u8", 1},  {"s8", 1},  {"b16", 2},  {"u16", 2},   {"s16", 2},
        {"f16", 2}, {"b32", 4}, {"u32", 4}, {"s32", 4},  {"f32", 4},   {"b64", 8},
        {"u64", 8}, {"s64", 8}, {"f64", 8}, {"bf16", 2}, {"f16x2", 4}, {"bf16x2", 4}};
    auto found = sizes.find(type.starts_with('.') ? type.substr(1) : type);
    return found == sizes.end() ? 0 : found->second;
}

/* --- files ------------------------------------------------------------------------------------ */

text_file::shared_variable declared(std::string_view line)
{
    text_file::shared_variable variable = {"", 0, 0, false};
    std::vector<std::string_view> words = split(line.substr(0, line.find(';')), ' ');
    uint64_t element = 0;
    for (size_t i = 0; i < words.size(); i++) {
        if (words[i] == ".align")
            variable.align = number_of(words[++i]);
        else if (type_bytes(words[i]))
            element = type_bytes(words[i]);
        else if (words[i][0] != '.')
            variable.name = words[i];
    }
    size_t bracket = variable.name.find('[');
    variable.dynamic = bracket != std::string::npos && variable.name[bracket + 1] == ']';
    variable.bytes = element;
    if (bracket != std::string::npos) {
        variable.bytes = element * number_of(std::string_view(variable.name).substr(bracket + 1));
        variable.name.resize(bracket);
    }
    variable.align = std::max(variable.align, element);
    return variable;
}

static void read_line(text_file &file, std::string_view line, size_t at)
{
    std::string_view words = trim(line);
    size_t entry = words.find(".entry ");
    if (entry != std::string_view::npos) {
        std::string_view name = words.substr(entry + 7);
        file.entries[std::string(trim(name.substr(0, name.find('('))))] = at;
    } else if (words.starts_with(".file")) {
        unsigned index = (unsigned)number_of(trim(words.substr(5)));
        size_t open = words.find('"'), close = words.rfind('"');
        std::string_view path = words.substr(open + 1, close - open - 1);
        file.sources[index] = path.substr(path.rfind('/') + 1);
    } else if (words.starts_with(".shared ") || words.starts_with(".extern .shared ")) {
        file.shared.push_back(declared(words));
    } else if (words.starts_with(".func") || words.starts_with(".visible .func") ||
               words.starts_with(".global") || words.starts_with(".const") ||
               words.starts_with(".visible .global") || words.starts_with(".visible .const")) {
        simt::defect("%s has what is not known here: %.*s", file.path.c_str(), (int)words.size(),
                     words.data());
    }
}

std::unique_ptr<text_file> read_text(const std::string &path)
{
    std::unique_ptr<text_file> file(new text_file);
    std::ifstream stream(path);
    std::stringstream text;
    text << stream.rdbuf();
    file->path = path;
    file->text = text.str();
    if (!stream || file->text.empty())
        simt::defect("%s cannot be read", path.c_str());
    for (size_t at = 0; at < file->text.size();) {
        size_t end = std::min(file->text.find('\n', at), file->text.size());
        if (end > at)
            read_line(*file, std::string_view(file->text).substr(at, end - at), at);
        at = end + 1;
    }
    return file;
}

/* --- bodies ----------------------------------------------------------------------------------- */

body_reader::body_reader(const text_file &file, size_t at_)
    : text(file.text), at(at_),
      line(1 + (uint32_t)std::count(file.text.begin(), file.text.begin() + (long)at_, '\n'))
{
}

/* Spaces and comments. */
void body_reader::skip()
{
    while (at < text.size()) {
        if (text.substr(at, 2) == "//") {
            at = std::min(text.find('\n', at), text.size());
        } else if (is_space(text[at])) {
            line += text[at++] == '\n';
        } else {
            return;
        }
    }
}

/* `.loc` ends with its line, the others with a semicolon. */
statement body_reader::directive()
{
    statement own = {statement::DIRECTIVE, {}, {}, {}, {}, line, source_file, source_line};
    size_t begin = at;
    while (at < text.size() && is_word(text[at]))
        at++;
    own.opcode = text.substr(begin, at - begin);
    bool is_loc = own.opcode == ".loc";
    begin = at;
    at = std::min(text.find(is_loc ? '\n' : ';', at), text.size());
    own.rest = trim(text.substr(begin, at - begin));
    line += (uint32_t)std::count(text.begin() + (long)begin, text.begin() + (long)at, '\n');
    if (!is_loc) {
        at++;
        return own;
    }
    std::vector<std::string_view> words = split(own.rest, ' ');
    source_file = (uint16_t)number_of(words[0]);
    source_line = (uint16_t)number_of(words[1]);
    return own;
}

statement body_reader::instruction()
{
    statement own = {statement::INSTRUCTION, {}, {}, {}, {}, line, source_file, source_line};
    size_t end = std::min(text.find(';', at), text.size());
    std::string_view words = text.substr(at, end - at);
    line += (uint32_t)std::count(words.begin(), words.end(), '\n');
    at = end + 1;
    words = trim(words);
    if (words[0] == '@') {
        size_t length = std::min(words.find_first_of(" \t\n"), words.size());
        own.guard = words.substr(1, length - 1);
        words = trim(words.substr(length));
    }
    size_t length = 0;
    while (length < words.size() && is_word(words[length]))
        length++;
    own.opcode = words.substr(0, length);
    own.operands = split(words.substr(length));
    return own;
}

statement body_reader::next()
{
    skip();
    statement own = {statement::END, {}, {}, {}, {}, line, source_file, source_line};
    if (at >= text.size())
        return own;
    if (text[at] == '{' || text[at] == '}') {
        own.kind = text[at++] == '{' ? statement::OPEN : statement::CLOSE;
        return own;
    }
    if (text[at] == '.')
        return directive();
    size_t end = at;
    while (end < text.size() && is_word(text[end]) && text[end] != ':')
        end++;
    if (end > at && text[end] == ':' && text[at] != '@') {
        own.kind = statement::LABEL;
        own.opcode = text.substr(at, end - at);
        at = end + 1;
        return own;
    }
    return instruction();
}

} // namespace ptx
