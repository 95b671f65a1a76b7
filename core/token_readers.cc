#include "core/token_readers.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <random>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/errors.h"
#include "core/map_pages.h"

namespace fenwick {
namespace {

static_assert(std::endian::native == std::endian::little, "raw token files are little-endian and read as memory");

constexpr std::int64_t kScanTokens = std::int64_t{1} << 20;

template <class T>
[[noreturn]] void throw_outside(const std::string& name, std::int64_t position, T value, std::int64_t vocab_size) {
    throw DataError(fmt::format(
        "{}: token {} is {}, outside the vocabulary of {} ids (0 to {}); was it made with another tokenizer?", name,
        position, value, vocab_size, vocab_size - 1));
}

void check_range(const std::string& name, std::int64_t size, std::int64_t first, std::size_t count) {
    if (first < 0 || first > size || static_cast<std::int64_t>(count) > size - first) {
        throw InternalError(fmt::format("{}: read of tokens [{}, +{}), but there are {}", name, first, count, size));
    }
}

template <class T>
T load(const std::byte* at, bool swap) {
    std::array<std::byte, sizeof(T)> raw{};
    std::memcpy(raw.data(), at, sizeof(T));
    if (swap) std::reverse(raw.begin(), raw.end());
    return std::bit_cast<T>(raw);
}

/// The id as 64 bits; a negative one becomes huge, so that one comparison sees both ends of the vocabulary.
template <class T>
std::uint64_t widen(T id) {
    if constexpr (std::is_signed_v<T>) {
        return static_cast<std::uint64_t>(std::int64_t{id});
    } else {
        return id;
    }
}

/// Converts `out.size()` integers at `in`; returns the index of the first one outside [0, vocab), or -1.
template <class T>
std::int64_t convert(const std::byte* in, bool swap, std::int64_t vocab_size, std::span<std::int32_t> out) {
    const auto limit = static_cast<std::uint64_t>(vocab_size);
    bool bad = false;
    for (std::size_t i = 0; i < out.size(); ++i) {
        const std::uint64_t id = widen(load<T>(in + i * sizeof(T), swap));
        bad |= id >= limit;
        out[i] = static_cast<std::int32_t>(id);
    }
    if (!bad) return -1;
    for (std::size_t i = 0; i < out.size(); ++i) {
        if (widen(load<T>(in + i * sizeof(T), swap)) >= limit) return static_cast<std::int64_t>(i);
    }
    return -1;
}

template <class T>
class ArrayReader final : public TokenReader {
public:
    ArrayReader(MappedFile file, const NpyHeader& layout, TokenArrayOptions options)
        : file_(std::move(file)), layout_(layout), options_(std::move(options)) {
        if (options_.check_ids) check_all();
    }
    [[nodiscard]] std::int64_t size() const override { return layout_.count; }
    [[nodiscard]] std::int64_t text_bytes() const override { return options_.text_bytes; }
    void read(std::int64_t first, std::span<std::int32_t> out) const override {
        check_range(options_.name, layout_.count, first, out.size());
        if (out.empty()) return;
        file_.check_not_cut();
        const std::int64_t offset = layout_.data_offset + first * static_cast<std::int64_t>(sizeof(T));
        const std::byte* in = file_.bytes().data() + offset;
        const std::int64_t bad = convert<T>(in, layout_.big_endian, options_.vocab_size, out);
        if (bad >= 0) {
            throw_outside(options_.name, first + bad,
                          +load<T>(in + bad * static_cast<std::int64_t>(sizeof(T)), layout_.big_endian),
                          options_.vocab_size);
        }
        forget_pages(file_, offset, static_cast<std::int64_t>(out.size() * sizeof(T)));
    }

private:
    void check_all() const {
        std::vector<std::int32_t> ids(static_cast<std::size_t>(std::min(kScanTokens, layout_.count)));
        for (std::int64_t first = 0; first < layout_.count; first += kScanTokens) {
            read(first, std::span(ids).first(static_cast<std::size_t>(std::min(kScanTokens, layout_.count - first))));
        }
    }

    MappedFile file_;
    NpyHeader layout_;
    TokenArrayOptions options_;
};

void copy_bytes(const char* in, std::span<std::int32_t> out) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<unsigned char>(in[i]);
}

void check_ids(const std::string& name, std::int64_t first, std::span<const std::int32_t> ids,
               std::int64_t vocab_size) {
    const auto bad = std::find_if(ids.begin(), ids.end(), [&](std::int32_t id) { return id < 0 || id >= vocab_size; });
    if (bad != ids.end()) throw_outside(name, first + (bad - ids.begin()), *bad, vocab_size);
}

class MappedBytes final : public TokenReader {
public:
    MappedBytes(MappedFile file, std::int64_t vocab_size) : file_(std::move(file)), vocab_size_(vocab_size) {}
    [[nodiscard]] std::int64_t size() const override { return file_.size(); }
    [[nodiscard]] std::int64_t text_bytes() const override { return file_.size(); }
    void read(std::int64_t first, std::span<std::int32_t> out) const override {
        check_range(file_.path().string(), file_.size(), first, out.size());
        if (out.empty()) return;
        file_.check_not_cut();
        copy_bytes(reinterpret_cast<const char*>(file_.bytes().data()) + first, out);
        if (vocab_size_ < 256) check_ids(file_.path().string(), first, out, vocab_size_);
        forget_pages(file_, first, static_cast<std::int64_t>(out.size()));
    }

private:
    MappedFile file_;
    std::int64_t vocab_size_;
};

class TextBytes final : public TokenReader {
public:
    TextBytes(std::string text, std::string name, std::int64_t vocab_size)
        : text_(std::move(text)), name_(std::move(name)), vocab_size_(vocab_size) {}
    [[nodiscard]] std::int64_t size() const override { return std::ssize(text_); }
    [[nodiscard]] std::int64_t text_bytes() const override { return std::ssize(text_); }
    void read(std::int64_t first, std::span<std::int32_t> out) const override {
        check_range(name_, size(), first, out.size());
        copy_bytes(text_.data() + first, out);
        if (vocab_size_ < 256) check_ids(name_, first, out, vocab_size_);
    }

private:
    std::string text_;
    std::string name_;
    std::int64_t vocab_size_;
};

class PrependedToken final : public TokenReader {
public:
    PrependedToken(std::int32_t id, std::unique_ptr<TokenReader> rest) : id_(id), rest_(std::move(rest)) {}
    [[nodiscard]] std::int64_t size() const override { return rest_->size() + 1; }
    [[nodiscard]] std::int64_t text_bytes() const override { return rest_->text_bytes(); }
    void read(std::int64_t first, std::span<std::int32_t> out) const override {
        if (out.empty()) return;
        if (first != 0) return rest_->read(first - 1, out);
        out.front() = id_;
        rest_->read(0, out.subspan(1));
    }

private:
    std::int32_t id_;
    std::unique_ptr<TokenReader> rest_;
};

std::filesystem::path new_token_file(const std::filesystem::path& folder) {
    std::random_device random;
    const auto name = fmt::format("tokens-{}-{:08x}{:08x}.i32", ::getpid(), random(), random());
    return (folder.empty() ? std::filesystem::temp_directory_path() : folder) / name;
}

}  // namespace

std::unique_ptr<TokenReader> open_token_array(MappedFile file, const NpyHeader& layout,
                                              const TokenArrayOptions& options) {
    const auto make = [&]<class T>(T /*type*/) -> std::unique_ptr<TokenReader> {
        return std::make_unique<ArrayReader<T>>(std::move(file), layout, options);
    };
    switch (layout.element_bytes * (layout.is_signed ? -1 : 1)) {
        case 1:
            return make(std::uint8_t{});
        case 2:
            return make(std::uint16_t{});
        case 4:
            return make(std::uint32_t{});
        case 8:
            return make(std::uint64_t{});
        case -1:
            return make(std::int8_t{});
        case -2:
            return make(std::int16_t{});
        case -4:
            return make(std::int32_t{});
        case -8:
            return make(std::int64_t{});
        default:
            throw InternalError(fmt::format("{}: integers of {} bytes", options.name, layout.element_bytes));
    }
}

NpyHeader raw_token_layout(const MappedFile& file, int element_bytes, bool is_signed) {
    if (file.size() % element_bytes != 0) {
        throw DataError(
            fmt::format("{}: {} bytes are no whole number of {}-byte token ids; name the width in the file name "
                        "(.u8.bin, .u16.bin, .u32.bin, "
                        ".i32.bin; .bin alone is 32 bits)",
                        file.path().string(), file.size(), element_bytes));
    }
    NpyHeader layout;
    layout.element_bytes = element_bytes;
    layout.is_signed = is_signed;
    layout.count = file.size() / element_bytes;
    return layout;
}

std::unique_ptr<TokenReader> open_byte_tokens(MappedFile file, std::int64_t vocab_size) {
    return std::make_unique<MappedBytes>(std::move(file), vocab_size);
}

std::unique_ptr<TokenReader> make_byte_tokens(std::string text, std::string name, std::int64_t vocab_size) {
    return std::make_unique<TextBytes>(std::move(text), std::move(name), vocab_size);
}

std::unique_ptr<TokenReader> prepend_token(std::int32_t id, std::unique_ptr<TokenReader> rest) {
    return std::make_unique<PrependedToken>(id, std::move(rest));
}

TokenSpool::TokenSpool(const std::filesystem::path& folder, std::string name, std::int64_t vocab_size)
    : name_(std::move(name)), vocab_size_(vocab_size), file_(AppendFile::create(new_token_file(folder))) {}

TokenSpool::~TokenSpool() {
    std::error_code error;
    if (!std::filesystem::remove(file_.path(), error) && error) {
        spdlog::warn("{}: cannot remove the token file: {}", file_.path().string(), error.message());
    }
}

void TokenSpool::append(std::span<const std::int32_t> ids) {
    check_ids(name_, count_, ids, vocab_size_);
    file_.append(std::as_bytes(ids));
    count_ += std::ssize(ids);
}

std::unique_ptr<TokenReader> TokenSpool::finish(std::int64_t text_bytes) {
    // The map outlives the name, which the writer takes away: nothing is left behind even by a killed reader.
    MappedFile map = MappedFile::open(file_.path(), EmptyFile::kAllow);
    const NpyHeader layout = raw_token_layout(map, sizeof(std::int32_t), true);
    return open_token_array(std::move(map), layout, {name_, vocab_size_, text_bytes, false});
}

}  // namespace fenwick
