// `open_document` of core/documents.h: from a listed document to its tokens.
#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "core/documents.h"
#include "core/errors.h"
#include "core/files.h"
#include "core/json.h"
#include "core/jsonl.h"
#include "core/map_pages.h"
#include "core/npy.h"
#include "core/token_readers.h"

namespace fenwick {
namespace {

std::string name_of(const DocumentRef& document) {
    if (document.line == 0) return document.content_path.string();
    const std::string row = fmt::format("{} line {} (custom_id {})", document.source.string(), document.line,
                                        in_quotes(document.custom_id));
    return document.content_path == document.source ? row : fmt::format("{}, {}", document.content_path.string(), row);
}

std::string_view view_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void check_options(const DocumentOptions& options) {
    if (options.vocab_size <= 0) throw InternalError("open_document: the vocabulary size is not set");
    if (options.prepend_bos && options.bos_id < 0) {
        throw UsageError(
            "--bos: the model has no begin-of-text token (bos_token_id in its config.json); leave --bos out");
    }
    if (options.prepend_bos && options.bos_id >= options.vocab_size) {
        throw UsageError(fmt::format("--bos: the begin-of-text token {} is outside the vocabulary of {} ids",
                                     options.bos_id, options.vocab_size));
    }
}

const Tokenizer& tokenizer_of(const DocumentOptions& options) {
    if (options.tokenizer == nullptr) throw InternalError("open_document: a text needs a tokenizer");
    return *options.tokenizer;
}

std::unique_ptr<TokenReader> tokenise(std::string_view text, const std::string& name, const DocumentOptions& options) {
    TokenSpool writer(options.work_folder, name, options.vocab_size);
    options.tokenizer->encode(text, name, [&](std::span<const std::int32_t> ids) { writer.append(ids); });
    return writer.finish(static_cast<std::int64_t>(text.size()));
}

std::unique_ptr<TokenReader> open_text(const DocumentRef& document, const DocumentOptions& options) {
    MappedFile file = MappedFile::open(document.content_path, EmptyFile::kAllow);
    if (tokenizer_of(options).kind() == TokenizerKind::kBytes)
        return open_byte_tokens(std::move(file), options.vocab_size);
    return tokenise(view_of(file.bytes()), name_of(document), options);
}

std::unique_ptr<TokenReader> open_ids(const DocumentRef& document, const DocumentOptions& options) {
    const bool raw = document.content == DocumentContent::kRawTokens;
    MappedFile file = MappedFile::open(document.content_path, raw ? EmptyFile::kAllow : EmptyFile::kRefuse);
    const NpyHeader layout = raw ? raw_token_layout(file, document.element_bytes, document.is_signed)
                                 : read_npy_header(file, document.content_path);
    return open_token_array(std::move(file), layout, {name_of(document), options.vocab_size, -1, options.check_ids});
}

/// Parses the row again; it was found good when the documents were listed.
JsonlRow read_row(const DocumentRef& document, const MappedFile& file, const TokenSink& tokens) {
    JsonlRow row;
    if (document.length <= file.size() && document.offset <= file.size() - document.length) {
        file.check_not_cut();
        const auto bytes =
            file.bytes().subspan(static_cast<std::size_t>(document.offset), static_cast<std::size_t>(document.length));
        row = parse_jsonl_row(view_of(bytes), true, tokens);
        forget_pages(file, document.offset, document.length);
    }
    if (!row.error.empty() || row.custom_id != document.custom_id) {
        throw DataError(fmt::format("{}: the file was changed after its rows were listed{}{}", name_of(document),
                                    row.error.empty() ? "" : ": ", row.error));
    }
    return row;
}

std::unique_ptr<TokenReader> open_row(const DocumentRef& document, const DocumentOptions& options) {
    const MappedFile file = MappedFile::open(document.source);
    const std::string name = name_of(document);
    if (document.content == DocumentContent::kJsonTokens) {
        TokenSpool writer(options.work_folder, name, options.vocab_size);
        (void)read_row(document, file, [&](std::span<const std::int32_t> ids) { writer.append(ids); });
        return writer.finish(-1);
    }
    JsonlRow row = read_row(document, file, {});
    if (tokenizer_of(options).kind() == TokenizerKind::kBytes) {
        return make_byte_tokens(std::move(row.value), name, options.vocab_size);
    }
    return tokenise(row.value, name, options);
}

std::unique_ptr<TokenReader> open_content(const DocumentRef& document, const DocumentOptions& options) {
    switch (document.content) {
        case DocumentContent::kText:
            return open_text(document, options);
        case DocumentContent::kNpy:
        case DocumentContent::kRawTokens:
            return open_ids(document, options);
        case DocumentContent::kJsonText:
        case DocumentContent::kJsonTokens:
            return open_row(document, options);
    }
    throw InternalError("open_document: unknown content");
}

}  // namespace

std::vector<bool> read_targets(const DocumentRef& document) {
    if (!document.has_targets) throw InternalError("read_targets: " + document.custom_id + " names none");
    return read_row(document, MappedFile::open(document.source), {}).targets;
}

std::unique_ptr<TokenReader> open_document(const DocumentRef& document, const DocumentOptions& options) {
    if (!document.error.empty()) throw DataError(document.error);
    check_options(options);
    auto reader = open_content(document, options);
    return options.prepend_bos ? prepend_token(options.bos_id, std::move(reader)) : std::move(reader);
}

}  // namespace fenwick
