// The store's life, its uploads and its gangs.
#include "coordinator/store/store.h"

#include <fmt/format.h>

#include "coordinator/idl/bytes.h"
#include "coordinator/store/database.h"

namespace fenwick {
namespace {

/// Gangs that ended are kept for those who look back; older ones go.
constexpr std::int64_t kEndedGangs = 200;

idl::Upload upload_of(const Rows& row) {
    idl::Upload upload;
    upload.id = row.text(0);
    upload.name = row.text(1);
    upload.size = row.integer(2);
    upload.received = row.integer(3);
    upload.committed = row.integer(4) != 0;
    upload.expiresAt = row.integer(5);
    return upload;
}

bool is_over(const idl::GangInfo& gang) {
    return gang.state == idl::GangState::LOST || gang.state == idl::GangState::ENDED;
}

void put_gang(StoreConnection& db, const idl::GangInfo& gang) {
    const std::string info = to_bytes(gang);
    Rows put = db.query(
        "INSERT INTO gangs (id, over, seen, info) VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET over = "
        "excluded.over, "
        "seen = excluded.seen, info = excluded.info",
        gang.id, static_cast<int>(is_over(gang)), gang.lastSeenAt);
    put.statement().bind(4, info.data(), static_cast<int>(info.size()));
    put.statement().exec();
}

/// What an earlier process had under way: its leases are over, its gangs have to say that they are still there.
void recover(StoreConnection& db) {
    std::vector<StoredDocument> running;
    {
        Rows row = db.query(fmt::format("SELECT {} FROM documents WHERE state = 2", kDocumentColumns));
        while (row.next()) running.push_back(document_of(row));
    }
    for (const StoredDocument& document : running) {
        add_log(db,
                {.level = idl::LogLevel::WARNING,
                 .text = fmt::format("queued again at token {}: the coordinator was restarted", document.save.position),
                 .job_id = document.job_id,
                 .custom_id = document.ref.custom_id});
        db.run("UPDATE jobs SET version = version + 1 WHERE id = ?", document.job_id);
    }
    db.run(
        "UPDATE documents SET state = 1, epoch = epoch + 1, gang = '', rate = 0, position = saved_position WHERE state "
        "= 2");
    std::vector<idl::GangInfo> gangs;
    {
        Rows row = db.query("SELECT info FROM gangs WHERE over = 0");
        while (row.next()) gangs.push_back(from_bytes<idl::GangInfo>(row.text(0)));
    }
    for (idl::GangInfo& gang : gangs) {
        gang.state = idl::GangState::LOST;
        gang.reason = "the coordinator was restarted, and the gang has not come back";
        for (idl::RankInfo& rank : gang.ranks) rank.state = idl::RankState::DISCONNECTED;
        put_gang(db, gang);
    }
}

}  // namespace

Store::Store(const std::filesystem::path& file) : database_(std::make_unique<Database>(file)) {
    database_->write([](StoreConnection& db) { recover(db); });
}

Store::~Store() = default;

void Store::on_job_change(std::function<void(const std::string&, std::int64_t)> observer) {
    database_->observe(std::move(observer));
}

idl::Upload Store::begin_upload(const std::string& client, const std::string& name, std::int64_t size,
                                std::int64_t expires_at, const ClientLimits& limits) {
    return database_->write([&](StoreConnection& db) {
        if (limits.upload_bytes > 0) {
            Rows row = db.query("SELECT coalesce(sum(size), 0) FROM uploads WHERE client = ? AND used = 0", client);
            (void)row.next();
            if (row.integer(0) + size > limits.upload_bytes) {
                throw ServiceFault(
                    ServiceCode::QUOTA_EXCEEDED,
                    fmt::format("{} has {} bytes of uploads that no job uses, and may have {}: {} more are "
                                "too many",
                                client, row.integer(0), limits.upload_bytes, size));
            }
        }
        const std::string id = new_id("upload");
        db.run("INSERT INTO uploads (id, client, name, size, expires) VALUES (?, ?, ?, ?, ?)", id, client, name, size,
               expires_at);
        idl::Upload upload;
        upload.id = id;
        upload.name = name;
        upload.size = size;
        upload.expiresAt = expires_at;
        return upload;
    });
}

idl::Upload Store::upload(const std::string& client, const std::string& id) const {
    return database_->read([&](StoreConnection& db) {
        Rows row = db.query(
            "SELECT id, name, size, received, committed, expires FROM uploads WHERE id = ? AND client = ?", id, client);
        if (!row.next()) {
            throw ServiceFault(ServiceCode::NOT_FOUND,
                               fmt::format("upload '{}': {} has none of that id, or its time was over", id, client));
        }
        return upload_of(row);
    });
}

void Store::record_received(const std::string& id, std::int64_t received) {
    database_->write([&](StoreConnection& db) {
        db.run("UPDATE uploads SET received = max(received, ?) WHERE id = ? AND committed = 0", received, id);
    });
}

void Store::commit_upload(const std::string& id) {
    database_->write([&](StoreConnection& db) { db.run("UPDATE uploads SET committed = 1 WHERE id = ?", id); });
}

std::vector<std::string> Store::expire_uploads() {
    return database_->write([&](StoreConnection& db) {
        std::vector<std::string> ids;
        Rows row = db.query("DELETE FROM uploads WHERE used = 0 AND expires <= ? RETURNING id", now_ms());
        while (row.next()) ids.push_back(row.text(0));
        return ids;
    });
}

void Store::record_gangs(std::span<const idl::GangInfo> gangs) {
    if (gangs.empty()) return;
    database_->write([&](StoreConnection& db) {
        bool over = false;
        for (const idl::GangInfo& gang : gangs) {
            put_gang(db, gang);
            over = over || is_over(gang);
        }
        if (!over) return;
        db.run(
            "DELETE FROM gangs WHERE over = 1 AND number <= (SELECT number FROM gangs WHERE over = 1 ORDER BY number "
            "DESC LIMIT 1 OFFSET ?)",
            kEndedGangs);
    });
}

idl::GangInfo Store::gang(const std::string& id) const {
    return database_->read([&](StoreConnection& db) {
        Rows row = db.query("SELECT info FROM gangs WHERE id = ?", id);
        if (!row.next())
            throw ServiceFault(ServiceCode::NOT_FOUND, fmt::format("gang '{}': there is none of that id", id));
        return from_bytes<idl::GangInfo>(row.text(0));
    });
}

idl::GangPage Store::list_gangs(const std::string& page_token, std::int32_t page_size) const {
    const std::int64_t skip = std::max<std::int64_t>(parse_page_token(page_token), 0);
    const std::int64_t limit = clamp_page(page_size);
    return database_->read([&](StoreConnection& db) {
        idl::GangPage page;
        Rows row = db.query("SELECT info FROM gangs ORDER BY over, number DESC LIMIT ? OFFSET ?", limit + 1, skip);
        while (row.next()) {
            if (std::ssize(page.gangs) == limit) {
                page.__set_nextPageToken(std::to_string(skip + limit));
                break;
            }
            page.gangs.push_back(from_bytes<idl::GangInfo>(row.text(0)));
        }
        return page;
    });
}

}  // namespace fenwick
