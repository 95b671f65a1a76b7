#include "core/token_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <string_view>
#include <type_traits>

#include "core/errors.h"
#include "core/json.h"
#include "core/map_pages.h"

namespace fenwick {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian and read as memory");

constexpr std::array<char, 8> kMagic = {'F', 'W', 'T', 'O', 'K', 'E', 'N', 'S'};
constexpr std::uint32_t kVersion = 1;
constexpr std::int64_t kAlignment = 8;
constexpr std::int64_t kMaxVocab = std::numeric_limits<std::int32_t>::max();

struct Header {
    std::array<char, 8> magic = kMagic;
    std::uint32_t version = kVersion;
    std::uint32_t id_bytes = 0;
    std::int64_t vocab_size = 0;
    std::int64_t documents = 0;
    std::int64_t tokens = 0;
    std::int64_t text_bytes = 0;
    std::int64_t mask_offset = 0;
    std::int64_t table_offset = 0;
    std::int64_t file_bytes = 0;
    std::array<char, 64> tokenizer{};
    std::array<char, 24> zero{};
    std::array<char, 32> hash{};
};
constexpr std::int64_t kHeaderBytes = 192;
constexpr std::size_t kHashedHeaderBytes = kHeaderBytes - sizeof(Header::hash);
static_assert(sizeof(Header) == kHeaderBytes && std::is_trivially_copyable_v<Header>);

std::span<const std::byte> hashed_bytes(const Header& header) {
    return std::as_bytes(std::span(&header, 1)).first(kHashedHeaderBytes);
}

std::int64_t aligned(std::int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

int width_of(std::int64_t vocab_size) {
    if (vocab_size <= (1 << 8)) return 1;
    return vocab_size <= (1 << 16) ? 2 : 4;
}

class HeaderCheck {
public:
    HeaderCheck(const std::filesystem::path& path, std::int64_t size) : path_(path.string()), size_(size) {}

    template <class Expected, class Found>
    [[noreturn]] void fail(std::string_view field, const Expected& expected, const Found& found) const {
        throw DataError(fmt::format("{}: field \"{}\": expected {}, found {}", path_, field, expected, found));
    }
    void number(std::string_view field, std::int64_t found, std::int64_t least, std::int64_t most) const {
        if (found < least || found > most) fail(field, fmt::format("a number in [{}, {}]", least, most), found);
    }
    void exactly(std::string_view field, std::int64_t found, std::int64_t expected) const {
        if (found != expected) fail(field, expected, found);
    }

    void all(const Header& header) const {
        if (header.magic != kMagic) {
            throw DataError(fmt::format("{}: is no token file: expected {} as its first bytes, found {}", path_,
                                        in_quotes({kMagic.data(), kMagic.size()}),
                                        in_quotes({header.magic.data(), header.magic.size()})));
        }
        exactly("version", header.version, kVersion);
        number("vocab_size", header.vocab_size, 1, kMaxVocab);
        if (header.id_bytes != 1 && header.id_bytes != 2 && header.id_bytes != 4) {
            fail("id_bytes", "1, 2 or 4", header.id_bytes);
        }
        // A first look at the size: a file that was cut is named as such before its counts are doubted.
        if (header.file_bytes != size_) {
            throw DataError(fmt::format("{}: field \"file_bytes\": expected {}, the size of the file, found {}{}",
                                        path_, size_, header.file_bytes,
                                        header.file_bytes > size_ ? "; the file was cut" : ""));
        }
        // With these two bounds none of the sums below leaves 64 bits.
        number("tokens", header.tokens, 0, size_ / header.id_bytes);
        number("documents", header.documents, 0, size_ / kAlignment);
        number("text_bytes", header.text_bytes, -1, std::numeric_limits<std::int64_t>::max());
        std::int64_t end = aligned(kHeaderBytes + header.tokens * header.id_bytes);
        if (header.mask_offset != 0) {
            exactly("mask_offset", header.mask_offset, end);
            end = aligned(end + (header.tokens + 7) / 8);
        }
        exactly("table_offset", header.table_offset, end);
        end += (header.documents + 1) * static_cast<std::int64_t>(sizeof(std::int64_t));
        exactly("file_bytes", header.file_bytes, end);
    }

    void table(std::span<const std::int64_t> table, std::int64_t tokens) const {
        if (table.front() != 0) fail("table[0]", 0, table.front());
        for (std::size_t i = 1; i < table.size(); ++i) {
            if (table[i] < table[i - 1] || table[i] > tokens) {
                fail(fmt::format("table[{}]", i), fmt::format("a token in [{}, {}]", table[i - 1], tokens), table[i]);
            }
        }
        if (table.back() != tokens) {
            fail(fmt::format("table[{}]", table.size() - 1), fmt::format("{}, the number of tokens", tokens),
                 table.back());
        }
    }

private:
    std::string path_;
    std::int64_t size_;
};

/// Widens `out.size()` ids at `in`; the index of the first one outside the vocabulary, or -1.
template <class T>
std::int64_t widen(const std::byte* in, std::int64_t vocab_size, std::span<std::int32_t> out) {
    const T* ids = reinterpret_cast<const T*>(in);  // aligned: the map starts at a page, the ids at byte 192
    bool bad = false;
    for (std::size_t i = 0; i < out.size(); ++i) {
        bad |= static_cast<std::int64_t>(ids[i]) >= vocab_size;
        out[i] = static_cast<std::int32_t>(ids[i]);
    }
    if (!bad) return -1;
    const T* first = std::find_if(ids, ids + out.size(), [&](T id) { return std::int64_t{id} >= vocab_size; });
    return first - ids;
}

template <class T>
void narrow(std::span<const std::int32_t> ids, std::vector<std::byte>& out) {
    out.resize(ids.size() * sizeof(T));
    for (std::size_t i = 0; i < ids.size(); ++i) {
        const T id = static_cast<T>(ids[i]);
        std::memcpy(out.data() + i * sizeof(T), &id, sizeof(T));
    }
}

}  // namespace

TokenFile TokenFile::open(const std::filesystem::path& path) {
    TokenFile file(MappedFile::open(path));
    const std::span<const std::byte> bytes = file.file_.bytes();
    if (file.file_.size() < kHeaderBytes) {
        throw DataError(fmt::format("{}: is no token file: expected a header of {} bytes, found {} bytes",
                                    path.string(), kHeaderBytes, bytes.size()));
    }
    Header header;
    std::memcpy(&header, bytes.data(), sizeof(header));
    const HeaderCheck check(path, file.file_.size());
    check.all(header);
    file.id_bytes_ = static_cast<int>(header.id_bytes);
    file.vocab_size_ = header.vocab_size;
    file.documents_ = header.documents;
    file.tokens_ = header.tokens;
    file.text_bytes_ = header.text_bytes;
    const std::string_view tokenizer(header.tokenizer.data(), header.tokenizer.size());
    file.tokenizer_ = tokenizer.substr(0, tokenizer.find('\0'));
    file.hash_.assign(header.hash.data(), header.hash.size());
    file.ids_ = bytes.data() + kHeaderBytes;
    if (header.mask_offset != 0) {
        file.mask_ = reinterpret_cast<const std::uint8_t*>(bytes.data() + header.mask_offset);
    }
    file.table_ = reinterpret_cast<const std::int64_t*>(bytes.data() + header.table_offset);
    check.table({file.table_, static_cast<std::size_t>(file.documents_ + 1)}, file.tokens_);
    return file;
}

void TokenFile::read(std::int64_t first, std::span<std::int32_t> out) const {
    if (first < 0 || first > tokens_ || std::ssize(out) > tokens_ - first) {
        throw InternalError(
            fmt::format("{}: read of tokens [{}, +{}), but there are {}", path().string(), first, out.size(), tokens_));
    }
    if (out.empty()) return;
    file_.check_not_cut();
    const std::byte* in = ids_ + first * id_bytes_;
    const std::int64_t bad = id_bytes_ == 1   ? widen<std::uint8_t>(in, vocab_size_, out)
                             : id_bytes_ == 2 ? widen<std::uint16_t>(in, vocab_size_, out)
                                              : widen<std::uint32_t>(in, vocab_size_, out);
    if (bad < 0) return;
    throw DataError(fmt::format("{}: token {}: expected an id in [0, {}), found {}", path().string(), first + bad,
                                vocab_size_, static_cast<std::uint32_t>(out[static_cast<std::size_t>(bad)])));
}

void TokenFile::verify() const {
    constexpr std::int64_t kStretch = std::int64_t{16} << 20;
    Hasher hasher;
    for (std::int64_t first = kHeaderBytes; first < file_.size(); first += kStretch) {
        file_.check_not_cut();
        const std::int64_t size = std::min(kStretch, file_.size() - first);
        hasher.update(file_.bytes().subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(size)));
        forget_pages(file_, first, size);
    }
    hasher.update(file_.bytes().first(kHashedHeaderBytes));
    if (const std::string found = hasher.hex(); found != hash_) {
        throw DataError(
            fmt::format("{}: field \"hash\": expected {}, the hash of the content, found {}; the file is damaged",
                        path().string(), found, in_quotes(hash_)));
    }
}

TokenFileWriter::TokenFileWriter(const std::filesystem::path& path, TokenFileOptions options)
    : path_(path), options_(std::move(options)), id_bytes_(width_of(options_.vocab_size)), file_(path) {
    if (options_.vocab_size < 1 || options_.vocab_size > kMaxVocab) {
        throw UsageError(fmt::format("{}: vocabulary: expected a size in [1, {}], found {}", path.string(), kMaxVocab,
                                     options_.vocab_size));
    }
    if (options_.tokenizer.size() > sizeof(Header::tokenizer)) {
        throw InternalError(
            fmt::format("{}: identity of a tokenizer of {} bytes", path.string(), options_.tokenizer.size()));
    }
    // Takes the header's place until all is known; of a file that was cut off here nothing remains.
    const std::vector<std::byte> nothing(kHeaderBytes);
    file_.write(nothing);
    size_ = kHeaderBytes;
}

void TokenFileWriter::append(std::span<const std::int32_t> ids, const std::vector<bool>& targets) {
    if (options_.with_mask != !targets.empty() && !ids.empty()) {
        throw InternalError(
            fmt::format("{}: a mask is {}", path_.string(), options_.with_mask ? "missing" : "not wanted"));
    }
    if (options_.with_mask && targets.size() != ids.size()) {
        throw InternalError(fmt::format("{}: {} mask bits for {} tokens", path_.string(), targets.size(), ids.size()));
    }
    for (std::size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] < 0 || ids[i] >= options_.vocab_size) {
            throw DataError(fmt::format("{}: token {} of document {}: expected an id in [0, {}), found {}",
                                        path_.string(), tokens_ + static_cast<std::int64_t>(i) - table_.back(),
                                        documents(), options_.vocab_size, ids[i]));
        }
    }
    if (id_bytes_ == 1) {
        narrow<std::uint8_t>(ids, narrow_);
    } else if (id_bytes_ == 2) {
        narrow<std::uint16_t>(ids, narrow_);
    } else {
        narrow<std::uint32_t>(ids, narrow_);
    }
    write(narrow_);
    if (options_.with_mask) mask_.resize(static_cast<std::size_t>((tokens_ + std::ssize(ids) + 7) / 8));
    for (std::size_t i = 0; i < targets.size(); ++i) {
        const auto token = static_cast<std::size_t>(tokens_) + i;
        if (targets[i]) mask_[token / 8] = static_cast<std::uint8_t>(mask_[token / 8] | (1U << (token % 8)));
    }
    tokens_ += std::ssize(ids);
}

void TokenFileWriter::end_document(std::int64_t text_bytes) {
    table_.push_back(tokens_);
    text_bytes_ = text_bytes_ < 0 || text_bytes < 0 ? -1 : text_bytes_ + text_bytes;
}

void TokenFileWriter::write(std::span<const std::byte> bytes) {
    file_.write(bytes);
    hasher_.update(bytes);
    size_ += std::ssize(bytes);
}

void TokenFileWriter::pad() {
    const std::array<std::byte, kAlignment> zeros{};
    write(std::span(zeros).first(static_cast<std::size_t>(aligned(size_) - size_)));
}

std::string TokenFileWriter::commit() {
    if (table_.back() != tokens_)
        throw InternalError(fmt::format("{}: the last document was not ended", path_.string()));
    Header header;
    pad();
    if (options_.with_mask) {
        header.mask_offset = size_;
        write(std::as_bytes(std::span(mask_)));
        pad();
    }
    header.table_offset = size_;
    write(std::as_bytes(std::span(table_)));
    header.id_bytes = static_cast<std::uint32_t>(id_bytes_);
    header.vocab_size = options_.vocab_size;
    header.documents = documents();
    header.tokens = tokens_;
    header.text_bytes = text_bytes_;
    header.file_bytes = size_;
    std::copy(options_.tokenizer.begin(), options_.tokenizer.end(), header.tokenizer.begin());
    hasher_.update(hashed_bytes(header));
    std::string hash = hasher_.hex();
    std::copy(hash.begin(), hash.end(), header.hash.begin());
    file_.overwrite(0, std::as_bytes(std::span(&header, 1)));
    file_.commit();
    return hash;
}

}  // namespace fenwick
