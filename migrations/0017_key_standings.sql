-- Whether keys may go on with the calls they have begun, for the edge, which may not read keys or people itself. They are
-- asked for by id: the secret that a call began with may have been replaced since, which ends no call. A key that is
-- gone has no row.
CREATE FUNCTION find_key_standings_v1(p_key_ids bigint[]) RETURNS TABLE (
    api_key_id bigint, revoked boolean, expired boolean, owner_active boolean, expires_in_ms bigint, project_ids bigint[]
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT k.id, k.revoked_at IS NOT NULL, coalesce(k.expires_at <= clock_timestamp(), false),
           k.owner_user_id IS NULL OR coalesce(u.active, false),
           ceil(extract(epoch FROM k.expires_at - clock_timestamp()) * 1000)::bigint,
           CASE WHEN k.kind = 'project' THEN ARRAY[k.project_id]
                ELSE ARRAY(SELECT g.project_id FROM api_key_projects g WHERE g.api_key_id = k.id) END
      FROM api_keys k LEFT JOIN users u ON u.id = k.owner_user_id
     WHERE k.id = ANY (p_key_ids)
$$;
