#include "core/npy.h"

#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/errors.h"
#include "core/json.h"

namespace fenwick {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::int64_t kMaxHeaderBytes = 1 << 16;  // the text of one or two dimensions is far shorter

/// The fields of the header's Python dictionary.
struct HeaderFields {
    std::optional<std::string> descr;
    std::optional<bool> fortran_order;
    std::optional<std::vector<std::int64_t>> shape;
};

/// Reads the one form of Python literal that numpy writes: {'descr': '<i4', 'fortran_order': False, 'shape': (3,), }.
class LiteralReader {
public:
    LiteralReader(std::string_view text, const std::string& source) : text_(text), source_(source) {}

    HeaderFields read() {
        HeaderFields fields;
        expect('{');
        while (!take('}')) {
            const std::string key = string();
            expect(':');
            if (key == "descr" && !fields.descr) {
                if (peek() == '[') fail("a structured dtype; expected integers");
                fields.descr = string();
            } else if (key == "fortran_order" && !fields.fortran_order) {
                fields.fortran_order = boolean();
            } else if (key == "shape" && !fields.shape) {
                fields.shape = tuple();
            } else {
                fail(fmt::format("key {} is unknown or comes twice", in_quotes(key)));
            }
            if (!take(',') && peek() != '}') fail("expected ',' or '}'");
        }
        if (peek() != '\0') fail("text after the dictionary");
        return fields;
    }

private:
    [[noreturn]] void fail(const std::string& why) const {
        throw DataError(fmt::format("{}: bad .npy header at byte {} of its dictionary: {}", source_, at_, why));
    }
    /// The next byte that is no white space; NUL at the end.
    char peek() {
        while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
        return at_ < text_.size() ? text_[at_] : '\0';
    }
    bool take(char c) {
        if (peek() != c) return false;
        ++at_;
        return true;
    }
    void expect(char c) {
        if (!take(c)) fail(fmt::format("expected '{}'", c));
    }
    std::string string() {
        const char quote = peek();
        if (quote != '\'' && quote != '"') fail("expected a string");
        const std::size_t end = text_.find(quote, at_ + 1);
        if (end == std::string_view::npos) fail("a string without end");
        std::string value(text_.substr(at_ + 1, end - at_ - 1));
        at_ = end + 1;
        return value;
    }
    bool boolean() {
        peek();
        for (const auto& [word, value] : {std::pair<std::string_view, bool>{"True", true}, {"False", false}}) {
            if (!text_.substr(at_).starts_with(word)) continue;
            at_ += word.size();
            return value;
        }
        fail("expected True or False");
    }
    std::vector<std::int64_t> tuple() {
        std::vector<std::int64_t> values;
        expect('(');
        while (!take(')')) {
            peek();
            std::int64_t value = 0;
            const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
            if (error != std::errc() || value < 0) fail("expected a dimension: an integer from 0 on, of 63 bits");
            at_ = static_cast<std::size_t>(end - text_.data());
            take('L');  // Python 2 wrote long integers so
            values.push_back(value);
            if (!take(',') && peek() != ')') fail("expected ',' or ')'");
        }
        return values;
    }

    std::string_view text_;
    const std::string& source_;
    std::size_t at_ = 0;
};

/// The header's text and where the data starts.
std::pair<std::string_view, std::int64_t> header_text(const MappedFile& file, const std::string& source) {
    const std::string_view all(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
    constexpr std::size_t kVersionEnd = 8;
    if (!all.starts_with(kMagic) || all.size() < kVersionEnd + 2) {
        throw DataError(fmt::format("{}: no .npy file: it does not start with \\x93NUMPY and a version", source));
    }
    const int major = static_cast<unsigned char>(all[6]);
    const int minor = static_cast<unsigned char>(all[7]);
    if (major < 1 || major > 3 || minor != 0) {
        throw DataError(fmt::format("{}: .npy version {}.{}; expected 1.0, 2.0 or 3.0", source, major, minor));
    }
    const std::size_t length_bytes = major == 1 ? 2 : 4;
    std::int64_t length = 0;
    for (std::size_t i = 0; i < length_bytes && kVersionEnd + i < all.size(); ++i) {
        length |= static_cast<std::int64_t>(static_cast<unsigned char>(all[kVersionEnd + i])) << (8 * i);
    }
    const auto start = static_cast<std::int64_t>(kVersionEnd + length_bytes);
    if (length > kMaxHeaderBytes || start + length > file.size()) {
        throw DataError(fmt::format("{}: .npy header of {} bytes in a file of {}: cut short or damaged", source, length,
                                    file.size()));
    }
    return {all.substr(static_cast<std::size_t>(start), static_cast<std::size_t>(length)), start + length};
}

/// Byte order, kind and size of '<i4', '|u1' and the like.
void read_descr(const std::string& descr, const std::string& source, NpyHeader& header) {
    std::string_view rest = descr;
    char order = '=';
    if (!rest.empty() && std::string_view("<>|=").find(rest.front()) != std::string_view::npos) {
        order = rest.front();
        rest.remove_prefix(1);
    }
    const bool is_integer = rest.size() == 2 && (rest[0] == 'i' || rest[0] == 'u') &&
                            (rest[1] == '1' || rest[1] == '2' || rest[1] == '4' || rest[1] == '8');
    if (!is_integer || (order == '|' && rest[1] != '1')) {
        throw DataError(
            fmt::format("{}: dtype {}; expected token ids of an integer type: i or u with 1, 2, 4 or 8 bytes, "
                        "such as '<i4' or '<u2'",
                        source, in_quotes(descr)));
    }
    header.is_signed = rest[0] == 'i';
    header.element_bytes = rest[1] - '0';
    header.big_endian = order == '>' && header.element_bytes > 1;
}

std::string float_header(std::int64_t values) {
    constexpr std::size_t kStart = 10;  // magic, version, two bytes of length
    constexpr char kTextBytes = NpyStream::kHeaderBytes - kStart;
    std::string header(kMagic);
    header += {1, 0, kTextBytes, 0};
    // At most 75 bytes for any 63-bit number: it always fits.
    header += fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({},), }}", values);
    header.resize(NpyStream::kHeaderBytes - 1, ' ');
    header += '\n';
    return header;
}

}  // namespace

NpyHeader read_npy_header(const MappedFile& file, const std::filesystem::path& path) {
    const std::string source = path.string();
    const auto [text, data_offset] = header_text(file, source);
    const HeaderFields fields = LiteralReader(text, source).read();
    if (!fields.descr || !fields.fortran_order || !fields.shape) {
        throw DataError(fmt::format("{}: the .npy header needs descr, fortran_order and shape", source));
    }
    NpyHeader header;
    header.data_offset = data_offset;
    read_descr(*fields.descr, source, header);
    const std::vector<std::int64_t>& shape = *fields.shape;
    if (shape.size() == 1) {
        header.count = shape[0];
    } else if (shape.size() == 2 && shape[0] == 1) {
        header.count = shape[1];
    } else {
        throw DataError(
            fmt::format("{}: shape {}; expected one dimension, or two with one row", source, shape_text(shape)));
    }
    const std::int64_t available = file.size() - data_offset;
    if (available % header.element_bytes != 0 || available / header.element_bytes != header.count) {
        throw DataError(
            fmt::format("{}: the header says {} elements of {} bytes, the file has {} bytes of data: cut short or "
                        "damaged",
                        source, header.count, header.element_bytes, available));
    }
    return header;
}

NpyStream NpyStream::create(const std::filesystem::path& path) {
    NpyStream stream(AppendFile::create(path), 0);
    stream.file_.append(bytes_of(float_header(0)));
    return stream;
}

NpyStream NpyStream::reopen(const std::filesystem::path& path, std::int64_t values) {
    constexpr std::int64_t kBytes = sizeof(float);
    AppendFile file = AppendFile::open(path);
    // The part before the number tells our header from any other.
    constexpr std::size_t kCommonBytes = 60;
    const std::string expected = float_header(0);
    std::string found(kHeaderBytes, '\0');
    if (file.size() < kHeaderBytes) {
        throw DataError(fmt::format("{}: {} bytes, too few for the header of a result", path.string(), file.size()));
    }
    file.read(0, std::as_writable_bytes(std::span<char>(found)));
    if (found.compare(0, kCommonBytes, expected, 0, kCommonBytes) != 0) {
        throw DataError(
            fmt::format("{}: not a result file to be continued: its .npy header is another", path.string()));
    }
    const std::int64_t held = (file.size() - kHeaderBytes) / kBytes;
    if (values < 0 || values > held) {
        throw DataError(fmt::format("{}: {} values are to be kept, the file holds {}", path.string(), values, held));
    }
    file.truncate(kHeaderBytes + values * kBytes);
    file.overwrite(0, bytes_of(expected));
    return {std::move(file), values};
}

void NpyStream::append(std::span<const float> values) {
    file_.append(std::as_bytes(values));
    values_ += std::ssize(values);
}

void NpyStream::finish() {
    file_.overwrite(0, bytes_of(float_header(values_)));
    file_.sync();
}

}  // namespace fenwick
