-- `@` before a name stands for the schema.

-- Bytes of any length as a key of an index, which takes at most about 2 700: long ones by their hash, which is
-- longer than any that stand for themselves.
CREATE FUNCTION @short(bytes bytea) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN octet_length(bytes) <= 64 THEN bytes ELSE '\x00'::bytea || sha512(bytes) END
$$;

CREATE FUNCTION @now() RETURNS int8 LANGUAGE sql VOLATILE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8
$$;

CREATE TABLE @topic (
    id int4 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    shards int4 NOT NULL,
    key text,
    generation uuid NOT NULL
);
-- The counters. Whoever gives places out holds the rows of its shards, taken in the order of shards, until its
-- commit: so the order of places is the order of commits.
CREATE TABLE @shard (
    topic int4 NOT NULL,
    shard int4 NOT NULL,
    last int8 NOT NULL DEFAULT 0,
    time int8 NOT NULL DEFAULT 0,
    PRIMARY KEY (topic, shard)
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
-- floor: trimmed up to here. announced: going to be trimmed up to here.
CREATE TABLE @trimmed (
    topic int4 NOT NULL,
    shard int4 NOT NULL,
    floor int8 NOT NULL DEFAULT 0,
    announced int8 NOT NULL DEFAULT 0,
    PRIMARY KEY (topic, shard)
);
CREATE TABLE @event (
    topic int4 NOT NULL,
    shard int4 NOT NULL,
    seq int8 NOT NULL,
    time int8 NOT NULL,
    id uuid NOT NULL,
    key bytea,
    headers bytea NOT NULL,
    payload bytea NOT NULL,
    PRIMARY KEY (topic, shard, seq)
);
CREATE TABLE @dedup (
    topic int4 NOT NULL,
    shard int4 NOT NULL,
    id bytea NOT NULL,
    seq int8 NOT NULL,
    time int8 NOT NULL,
    PRIMARY KEY (topic, shard, id)
);
CREATE INDEX dedup_age ON @dedup (topic, shard, time);
-- Events that were published within a transaction of the user and are not in the log yet.
CREATE TABLE @outbox (
    n int8 GENERATED ALWAYS AS IDENTITY,
    topic int4 NOT NULL,
    shard int4 NOT NULL,
    id uuid NOT NULL,
    key bytea,
    headers bytea NOT NULL,
    payload bytea NOT NULL,
    PRIMARY KEY (topic, shard, n)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Takes the counters of these shards, which ascend, and moves what lies in the outbox for them into the log.
-- Each statement in here sees what was committed before it began: one that had to wait for a counter sees what
-- its holder wrote.
CREATE FUNCTION @take(of_topic int4, of_shards int4[], OUT firsts int8[], OUT times int8[])
LANGUAGE plpgsql AS $$
DECLARE
    now int8;
    taken int4;
BEGIN
    SELECT array_agg(s.last), array_agg(s.time), count(*) INTO firsts, times, taken
    FROM (SELECT c.last, c.time FROM @shard c WHERE c.topic = of_topic AND c.shard = ANY (of_shards)
          ORDER BY c.shard FOR NO KEY UPDATE) s;
    IF taken <> cardinality(of_shards) THEN
        RAISE EXCEPTION 'photon: topic % has lost its shards', of_topic USING ERRCODE = 'PH001';
    END IF;
    now := @now();
    SELECT array_agg(greatest(t.time, now) ORDER BY t.n) INTO times
    FROM unnest(times) WITH ORDINALITY t(time, n);
    IF EXISTS (SELECT FROM @outbox o WHERE o.topic = of_topic AND o.shard = ANY (of_shards)) THEN
        WITH places AS (
            SELECT u.shard, u.first, u.time FROM unnest(of_shards, firsts, times) u(shard, first, time)
        ), gone AS (
            DELETE FROM @outbox o WHERE o.topic = of_topic AND o.shard = ANY (of_shards)
            RETURNING o.n, o.shard, o.id, o.key, o.headers, o.payload
        ), moved AS (
            INSERT INTO @event (topic, shard, seq, time, id, key, headers, payload)
            SELECT of_topic, g.shard, p.first + row_number() OVER (PARTITION BY g.shard ORDER BY g.n), p.time,
                   g.id, g.key, g.headers, g.payload
            FROM gone g JOIN places p ON p.shard = g.shard
            RETURNING shard, seq
        ), counted AS (
            UPDATE @shard c SET last = m.last, time = m.time
            FROM (SELECT p.shard, p.time, max(m.seq) AS last FROM places p JOIN moved m ON m.shard = p.shard
                  GROUP BY p.shard, p.time) m
            WHERE c.topic = of_topic AND c.shard = m.shard
            RETURNING c.shard, c.last
        )
        SELECT array_agg(coalesce(c.last, p.first) ORDER BY p.shard) INTO firsts
        FROM places p LEFT JOIN counted c ON c.shard = p.shard;
    END IF;
END $$;

-- Appends rows. `of_shards` are the shards that occur, ascending, and `counts` how many rows go into each; row
-- i belongs to the shard at index `indexes[i]` and is number `ranks[i]` in it, both from 1. Returns the last
-- place of each shard before the first row.
CREATE FUNCTION @append(
    of_topic int4, of_shards int4[], counts int4[], indexes int4[], ranks int4[],
    ids uuid[], keys bytea[], headers bytea[], payloads bytea[]
) RETURNS int8[] LANGUAGE plpgsql AS $$
DECLARE
    firsts int8[];
    times int8[];
BEGIN
    SELECT t.firsts, t.times INTO firsts, times FROM @take(of_topic, of_shards) t;
    INSERT INTO @event (topic, shard, seq, time, id, key, headers, payload)
    SELECT of_topic, of_shards[r.i], firsts[r.i] + r.rank, times[r.i], r.id, r.key, r.header, r.payload
    FROM unnest(indexes, ranks, ids, keys, headers, payloads) r(i, rank, id, key, header, payload);
    UPDATE @shard c SET last = u.first + u.count, time = u.time
    FROM unnest(of_shards, firsts, counts, times) u(shard, first, count, time)
    WHERE c.topic = of_topic AND c.shard = u.shard;
    RETURN firsts;
END $$;

-- The same for rows of which some have a dedup id. A row whose id was seen within `span` microseconds, or
-- before in this call, is not stored. Returns the place of each row, and whether it is a duplicate.
CREATE FUNCTION @append_once(
    of_topic int4, of_shards int4[], indexes int4[],
    ids uuid[], keys bytea[], headers bytea[], payloads bytea[], dedups bytea[], span int8,
    OUT seqs int8[], OUT duplicates bool[]
) LANGUAGE plpgsql AS $$
DECLARE
    firsts int8[];
    times int8[];
BEGIN
    SELECT t.firsts, t.times INTO firsts, times FROM @take(of_topic, of_shards) t;
    WITH rows AS (
        SELECT r.n, r.i, @short(r.dedup) AS dedup FROM unnest(indexes, dedups) WITH ORDINALITY r(i, dedup, n)
    ), known AS (
        SELECT r.n, r.i, d.seq AS known,
               CASE WHEN r.dedup IS NULL THEN r.n ELSE min(r.n) OVER (PARTITION BY r.i, r.dedup) END AS first
        FROM rows r LEFT JOIN @dedup d ON d.topic = of_topic AND d.shard = of_shards[r.i] AND d.id = r.dedup
            AND d.time > times[r.i] - span
    ), places AS (
        SELECT k.n, k.first, k.known,
               firsts[k.i] + count(*) FILTER (WHERE k.known IS NULL AND k.first = k.n)
                   OVER (PARTITION BY k.i ORDER BY k.n) AS next
        FROM known k
    )
    SELECT array_agg(coalesce(p.known, f.next) ORDER BY p.n),
           array_agg(p.known IS NOT NULL OR p.first <> p.n ORDER BY p.n)
    INTO seqs, duplicates
    FROM places p JOIN places f ON f.n = p.first;

    INSERT INTO @event (topic, shard, seq, time, id, key, headers, payload)
    SELECT of_topic, of_shards[r.i], r.seq, times[r.i], r.id, r.key, r.header, r.payload
    FROM unnest(indexes, seqs, duplicates, ids, keys, headers, payloads)
        r(i, seq, duplicate, id, key, header, payload)
    WHERE NOT r.duplicate;
    UPDATE @shard c SET last = u.last, time = u.time
    FROM (SELECT of_shards[r.i] AS shard, max(r.seq) AS last, max(times[r.i]) AS time
          FROM unnest(indexes, seqs, duplicates) r(i, seq, duplicate) WHERE NOT r.duplicate GROUP BY r.i) u
    WHERE c.topic = of_topic AND c.shard = u.shard;

    -- What is over goes a little faster than new ids come: so the table shrinks back.
    DELETE FROM @dedup d USING (
        SELECT o.topic, o.shard, o.id
        FROM unnest(of_shards, times) s(shard, time) CROSS JOIN LATERAL (
            SELECT d.topic, d.shard, d.id FROM @dedup d
            WHERE d.topic = of_topic AND d.shard = s.shard AND d.time <= s.time - span
            ORDER BY d.time LIMIT 2 * cardinality(indexes)) o
    ) old WHERE d.topic = old.topic AND d.shard = old.shard AND d.id = old.id;
    INSERT INTO @dedup (topic, shard, id, seq, time)
    SELECT of_topic, of_shards[r.i], @short(r.dedup), r.seq, times[r.i]
    FROM unnest(indexes, seqs, duplicates, dedups) r(i, seq, duplicate, dedup)
    WHERE NOT r.duplicate AND r.dedup IS NOT NULL
    ON CONFLICT (topic, shard, id) DO UPDATE SET seq = excluded.seq, time = excluded.time;
END $$;

-- What shards hold after cursors: one row for each record, and one without for a shard that gives none. The shards
-- that have records share the limits evenly; where these are too small for all, those go first that come first from
-- cursor `first` on. Planned once a connection: planning takes as long as reading.
CREATE FUNCTION @read(of_topic int4, shards int4[], afters int8[], records int8, bytes int8, first int8)
RETURNS TABLE (
    n int8, floor int8, last int8, asked bool,
    seq int8, "time" int8, id uuid, key bytea, headers bytea, payload bytea
) LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH cursors AS (
        SELECT c.n, c.shard, c.after, t.floor, s.last,
               row_number() OVER (PARTITION BY s.last > c.after ORDER BY (c.n + first) % cardinality(shards)) AS turn,
               least(count(*) FILTER (WHERE s.last > c.after) OVER (), records, bytes) AS share
        FROM unnest(shards, afters) WITH ORDINALITY c(shard, after, n)
        JOIN @shard s ON s.topic = of_topic AND s.shard = c.shard
        JOIN @trimmed t ON t.topic = of_topic AND t.shard = c.shard
    )
    SELECT c.n, c.floor, c.last, c.last > c.after AND c.turn <= c.share,
           e.seq, e.time, e.id, e.key, e.headers, e.payload
    FROM cursors c LEFT JOIN LATERAL (
        SELECT * FROM (
            SELECT r.*, sum(octet_length(r.payload)) OVER (ORDER BY r.seq ROWS UNBOUNDED PRECEDING)
                        - octet_length(r.payload) AS before
            FROM (SELECT * FROM @event e WHERE e.topic = of_topic AND e.shard = c.shard AND e.seq > c.after
                  ORDER BY e.seq LIMIT records / greatest(c.share, 1)) r
        ) r WHERE r.before < bytes / greatest(c.share, 1)
    ) e ON c.last > c.after AND c.turn <= c.share;
END $$;

-- For a shard, the last place whose record was taken in before `at`: by halving, because times never go back.
CREATE FUNCTION @position_at(of_topic int4, of_shard int4, at int8) RETURNS int8 LANGUAGE plpgsql STABLE AS $$
DECLARE
    low int8;
    high int8;
    middle int8;
    found int8;
BEGIN
    SELECT t.floor, c.last INTO low, high FROM @shard c JOIN @trimmed t USING (topic, shard)
    WHERE c.topic = of_topic AND c.shard = of_shard;
    WHILE low < high LOOP
        middle := low + (high - low + 1) / 2;
        SELECT e.time INTO found FROM @event e
        WHERE e.topic = of_topic AND e.shard = of_shard AND e.seq = middle;
        IF found < at THEN low := middle; ELSE high := middle - 1; END IF;
    END LOOP;
    RETURN low;
END $$;

CREATE TABLE @subscription (
    id int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic int4 NOT NULL,
    position text COLLATE "C" NOT NULL,
    mode int4 NOT NULL,
    registered int8 NOT NULL,
    active int8 NOT NULL,
    expire_after int8,
    revision int8 NOT NULL DEFAULT 0,
    pause_reason bytea,
    pause_since int8,
    UNIQUE (topic, position)
) WITH (fillfactor = 50);
-- Whoever writes about a shard of a subscription holds its row in here. active: of the last commit.
CREATE TABLE @checkpoint (
    subscription int8 NOT NULL,
    shard int4 NOT NULL,
    start int8 NOT NULL,
    watermark int8 NOT NULL,
    ranges bytea NOT NULL,
    trials bytea NOT NULL DEFAULT '',
    active int8 NOT NULL DEFAULT 0,
    resets int8 NOT NULL DEFAULT 0,
    PRIMARY KEY (subscription, shard)
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- state: 0 parked, 1 waiting, 2 dead, 3 dead and blocking its lane, 4 the mark of one that ended.
CREATE TABLE @delivery (
    subscription int8 NOT NULL,
    shard int4 NOT NULL,
    seq int8 NOT NULL,
    version int8 NOT NULL,
    state int4 NOT NULL,
    due int8,
    attempts int8 NOT NULL,
    lane bytea,
    lane_id bytea,
    reason text COLLATE "C",
    first_failed int8,
    last_failed int8,
    deferred_since int8,
    time int8,
    id uuid,
    error bytea,
    headers bytea,
    payload bytea,
    PRIMARY KEY (subscription, shard, seq)
);
CREATE INDEX delivery_live ON @delivery (subscription, shard, lane_id, seq) WHERE state IN (0, 1, 3);
CREATE INDEX delivery_dead ON @delivery (subscription, shard, seq) WHERE state IN (2, 3);
CREATE INDEX delivery_mark ON @delivery (subscription, shard, seq) WHERE state = 4;
-- The lanes with live rows: the first of them and how many there are.
CREATE TABLE @lane (
    subscription int8 NOT NULL,
    shard int4 NOT NULL,
    lane_id bytea NOT NULL,
    head int8 NOT NULL,
    rows int8 NOT NULL,
    PRIMARY KEY (subscription, shard, lane_id)
);
CREATE INDEX lane_head ON @lane (subscription, shard, head);

CREATE TABLE @member (
    incarnation uuid PRIMARY KEY,
    instance text COLLATE "C" NOT NULL,
    host bytea NOT NULL,
    pid int8 NOT NULL,
    process_start bytea NOT NULL,
    heartbeat int8 NOT NULL,
    joined int8 NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
-- A row is never removed: its epoch must not start over. owner: who it was granted to, until the work ended in
-- order. unended: the owner before, if its work did not.
CREATE TABLE @claim (
    topic text COLLATE "C" NOT NULL,
    position text COLLATE "C" NOT NULL,
    shard int4 NOT NULL,
    epoch int8 NOT NULL,
    holder uuid,
    owner bytea,
    unended bytea,
    PRIMARY KEY (topic, position, shard)
);
CREATE INDEX claim_holder ON @claim (holder) WHERE holder IS NOT NULL;

-- Moves checkpoints on, where that is all there is to do: every shard is owned under its fence, and every watermark lies
-- above the stored one. Else does nothing, and returns false. The order of locks is that of all writers.
CREATE FUNCTION @advance(
    of_topic text, of_position text, of_shards int4[], epochs int8[], holders uuid[],
    new_watermarks int8[], new_ranges bytea[], new_trials bytea[]
) RETURNS bool LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    owned int8;
    moving int8;
    of_subscription int8;
BEGIN
    SELECT count(*) INTO owned
    FROM (SELECT c.shard, c.epoch, c.holder FROM @claim c
          WHERE c.topic = of_topic AND c.position = of_position AND c.shard = ANY (of_shards)
          ORDER BY c.shard FOR SHARE) c
    JOIN unnest(of_shards, epochs, holders) u(shard, epoch, holder)
        ON u.shard = c.shard AND u.epoch = c.epoch AND u.holder = c.holder;
    SELECT s.id INTO of_subscription FROM @subscription s JOIN @topic t ON t.id = s.topic
    WHERE t.name = of_topic AND s.position = of_position;
    SELECT count(*) INTO moving
    FROM (SELECT c.shard, c.watermark FROM @checkpoint c
          WHERE c.subscription = of_subscription AND c.shard = ANY (of_shards)
          ORDER BY c.shard FOR NO KEY UPDATE) c
    JOIN unnest(of_shards, new_watermarks) u(shard, watermark) ON u.shard = c.shard AND u.watermark > c.watermark;
    IF owned <> cardinality(of_shards) OR moving <> cardinality(of_shards) THEN
        RETURN false;
    END IF;
    UPDATE @checkpoint c SET watermark = u.watermark, ranges = u.ranges, trials = u.trials, active = @now()
    FROM unnest(of_shards, new_watermarks, new_ranges, new_trials) u(shard, watermark, ranges, trials)
    WHERE c.subscription = of_subscription AND c.shard = u.shard;
    DELETE FROM @delivery d USING unnest(of_shards, new_watermarks) u(shard, watermark)
    WHERE d.subscription = of_subscription AND d.shard = u.shard AND d.seq <= u.watermark AND d.state = 4;
    RETURN true;
END $$;
